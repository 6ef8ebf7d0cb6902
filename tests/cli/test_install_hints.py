"""What is said where an optional package is missing can be typed as it stands, in a checkout."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from archer.engines.verl import versions
from archer.errors import ArcherError, install_hint
from archer.viewer.app import app_maker, in_gradio
from archer.viewer.runs import Library

ROOT = Path(__file__).parents[2]


def extra_installed_by(text: str) -> str:
    """Return the extra that the commands in a message install, which are all the same."""
    ((constraints, extra),) = set(
        re.findall(r'pip install -c (\S+) -e "\.\[(\w+)\]" in Archer\'s checkout', text)
    )
    assert (ROOT / constraints).is_file()
    assert constraints == ("constraints-gpu.txt" if extra == "gpu" else "constraints.txt")
    return extra


@pytest.mark.parametrize(("rollout", "extra"), [("vllm", "gpu"), ("transformers_cpu", "verl")])
def test_the_verl_engine_names_its_extra(rollout, extra, monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda package: None)
    with pytest.raises(ArcherError) as error:
        versions.check_versions(rollout)
    assert extra_installed_by(str(error.value)) == extra


def test_the_viewer_names_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "archer.viewer.server", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(ArcherError, match="the viewer needs fastapi") as error:
        app_maker(Library([]))
    assert extra_installed_by(str(error.value)) == "viewer"


def test_the_gradio_host_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ArcherError, match="leave --gradio out") as error:
        in_gradio(None)  # type: ignore[arg-type]
    assert extra_installed_by(str(error.value)) == "gradio"


def test_without_a_checkout_the_installed_package_is_given_the_extra(tmp_path):
    assert install_hint("viewer", checkout=tmp_path) == 'pip install "archer-rl[viewer]"'


def test_the_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"verl", "gpu", "viewer", "gradio", "ablation"} <= extras.keys()
