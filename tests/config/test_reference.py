"""The written reference says what the code does."""

import re
from pathlib import Path

from archer.config.parse import leaves
from archer.config.reference import render
from archer.config.root import TrainConfig

ROOT = Path(__file__).parents[2]


def test_the_reference_in_docs_is_up_to_date():
    written = (ROOT / "docs/configuration.md").read_text()
    assert written == render(), "run: python -m archer.config.reference"


def test_every_section_appears_once_and_before_those_inside_it():
    titles = re.findall(r"^## `(.+)`$", render(), re.MULTILINE)
    assert len(titles) == len(set(titles))
    assert set(titles) == {name.rpartition(".")[0] for name, _, _ in leaves(TrainConfig)}
    for position, title in enumerate(titles):
        assert not any(title.startswith(f"{later}.") for later in titles[position:])


def test_every_key_is_in_its_section():
    text = render()
    for name, _, _ in leaves(TrainConfig):
        section, _, key = name.rpartition(".")
        assert f"| `{key}` |" in text.split(f"## `{section}`\n")[1].split("## ")[0]


def test_every_key_is_explained():
    assert all(len(field.metadata["help"]) > 3 for _, _, field in leaves(TrainConfig))
