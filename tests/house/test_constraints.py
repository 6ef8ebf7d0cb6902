"""Both sets of exact versions, with and without GPU, hold together and fit what Archer asks for."""

import hashlib
import json
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from archer.engines.verl import versions
from archer.integrations.trl_versions import LAST

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SETS = {"constraints.txt": ["dev"], "constraints-gpu.txt": ["gpu", "dev"]}
"""File -> the extras that can be installed with it; dev holds all but gpu."""
GPU_MACHINES = [{"python_version": "3.11"}, {"python_version": "3.12"}]


def pins(file: str) -> dict[str, str]:
    """Return package -> version of a constraints file."""
    lines = (line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return {canonicalize_name(name): number for name, number in (line.split("==") for line in lines if line)}


def asked(extras: list[str]) -> list[Requirement]:
    """Return what Archer and these extras ask for; extras that name other extras are followed."""
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    todo, seen = list(extras), set()
    while todo:
        if (extra := todo.pop()) in seen:
            continue
        seen.add(extra)
        for requirement in map(Requirement, EXTRAS[extra]):
            if requirement.name == PROJECT["name"]:
                todo += requirement.extras
            else:
                found.append(requirement)
    return found


@pytest.mark.parametrize("file", SETS)
def test_every_line_is_one_exact_version_in_order(file):
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines)
    assert len(pins(file)) == len(lines), "a package has two lines"


@pytest.mark.parametrize("file", SETS)
def test_what_archer_asks_for_is_pinned_to_a_version_that_fits(file):
    there = pins(file)
    unfit = [
        f"{requirement} (pinned: {there.get(canonicalize_name(requirement.name), 'not at all')})"
        for requirement in asked(SETS[file])
        if not requirement.specifier.contains(there.get(canonicalize_name(requirement.name), "0"))
    ]
    assert not unfit


@pytest.mark.parametrize("file", SETS)
def test_the_engines_take_the_pinned_versions(file, monkeypatch):
    there = pins(file)
    monkeypatch.setattr(versions, "installed", lambda package: there.get(canonicalize_name(package)))
    versions.check_versions("vllm" if "gpu" in SETS[file] else "transformers_cpu")
    assert not [text for need in versions.LOCAL if (text := versions.problem(need, there[need.package]))]


def test_the_gpu_set_is_that_of_verls_own_extra_for_vllm():
    there = pins("constraints-gpu.txt")
    assert "trl" not in there  # trl >= 1.0 breaks verl's workers
    own = {r.name: r for r in map(Requirement, requires("verl") or []) if _of_extra(r, "vllm")}
    for name in ("torch", "torchvision", "torchaudio", "vllm", "transformers"):
        assert own[name].specifier.contains(there[name]), f"verl's extra vllm has {own[name]}"


@pytest.mark.parametrize(
    "package", ["verl", "vllm", "ray", "transformers", "tensordict", "gradio", "datasets"]
)
@pytest.mark.parametrize("file", SETS)
def test_the_pins_fit_the_metadata_of_what_is_installed(file, package):
    """What an installed package says of others; one of another version than the pinned proves nothing."""
    there = pins(file)
    if package not in there or versions.installed(package) != there[package]:
        pytest.skip(f"{package} {there.get(package, '(not in this set)')} is not installed here")
    unfit = [
        str(need)
        for need in map(Requirement, requires(package) or [])
        if need.marker is None or any(need.marker.evaluate(_environment() | m) for m in GPU_MACHINES)
        if (number := there.get(canonicalize_name(need.name))) is None
        or not need.specifier.contains(number, prereleases=True)
    ]
    assert not unfit


def test_trl_comes_alone_and_needs_nothing_that_is_not_pinned():
    """scripts/ensure_trl.sh installs it without dependencies, into a folder that verl never sees."""
    (alone,) = pins("constraints-trl.txt").items()
    assert alone == ("trl", LAST)
    assert "trl" not in pins("constraints.txt")
    there = pins("constraints.txt")
    needed = ("accelerate", "datasets", "jinja2", "pandas", "pyarrow", "pyyaml", "transformers")
    assert not [name for name in needed if name not in there]


def test_both_sets_differ_only_where_the_gpu_set_must():
    """A package in both files has one version, unless vLLM or verl's extra wants another."""
    cpu, gpu = pins("constraints.txt"), pins("constraints-gpu.txt")
    apart = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert apart == {"torch", "transformers", "numpy", "fastapi", "pydantic", "pydantic-core"}
    assert cpu.keys() <= gpu.keys()


@pytest.fixture(scope="module")
def pip(tmp_path_factory) -> list[str]:
    """A pip that reads the metadata of a wheel without fetching the wheel: those before 24 fetch it all."""
    if sys.version_info[:2] not in ((3, 11), (3, 12)) or platform.machine() != "x86_64":
        pytest.skip("the sets are for Python 3.11 and 3.12 on x86_64")
    folder = tmp_path_factory.mktemp("pip")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--retries=0", "--target", folder, "pip>=25"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    return [sys.executable, str(folder / "pip")]


HALVES = {"constraints.txt": [["dev"]], "constraints-gpu.txt": [["verl", "viewer"], ["vllm"]]}
"""With exact versions the halves of a set fit each other if each fits the pins; at a time it is quicker."""


def test_pip_resolves_both_sets(request, tmp_path):
    """`pip install -c FILE -e ".[EXTRAS]"` finds every package, in exactly the pinned versions."""
    files = [ROOT / name for name in ("pyproject.toml", *SETS)]
    state = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    key = f"archer/resolved-{sys.version_info[0]}.{sys.version_info[1]}"
    if request.config.cache.get(key, None) == state:
        pytest.skip(
            "these files were resolved here before; exact versions do not change (pytest --cache-clear)"
        )
    pip = request.getfixturevalue("pip")
    running = {}
    for number, (file, what) in enumerate((file, what) for file, halves in HALVES.items() for what in halves):
        wanted = [r for r in asked(["gpu"]) if r.name == "vllm"] if what == ["vllm"] else asked(what)
        command = [
            *pip,
            "install",
            "--dry-run",
            "--ignore-installed",
            "--use-feature=fast-deps",
            "--retries=0",
        ]
        command += ["--report", str(tmp_path / f"{number}.json"), "-c", str(ROOT / file), *map(str, wanted)]
        running[file, number] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    try:
        for (file, number), process in running.items():
            check_resolution(file, process, tmp_path / f"{number}.json")
        request.config.cache.set(key, state)
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def check_resolution(file: str, process: subprocess.Popen, report: Path) -> None:
    """Read what pip says, stop before it fetches a large file, and compare its choice with the pins."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if re.search(r"Downloading .*\(\d{2,}(\.\d)? [MG]B\)", line):
            pytest.skip(f"the index gives no metadata without the whole file: {line.strip()}")
    assert process.wait() == 0, said[-3000:]
    there = pins(file)
    for entry in json.loads(report.read_text())["install"]:
        name, number = canonicalize_name(entry["metadata"]["name"]), Version(entry["metadata"]["version"])
        if name in there:
            assert number.public == there[name], f"{file} pins {name} {there[name]}"
        else:
            assert file == "constraints.txt" and _of_cuda(name), f"{name} {number} is not pinned in {file}"


def _of_cuda(name: str) -> bool:
    """What torch brings along where its build is for CUDA; constraints.txt serves machines without."""
    return name.startswith(("nvidia-", "cuda-")) or name in ("triton", "setuptools")


def _of_extra(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate(_environment() | {"extra": extra})


def _environment() -> dict[str, str]:
    return {**default_environment(), "extra": ""}
