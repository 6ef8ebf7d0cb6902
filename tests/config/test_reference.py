"""The written reference says what the code does."""

from pathlib import Path

from archer.config.parse import leaves
from archer.config.reference import render
from archer.config.root import TrainConfig

ROOT = Path(__file__).parents[2]


def test_the_reference_in_docs_is_up_to_date():
    written = (ROOT / "docs/configuration.md").read_text()
    assert written == render(), "run: python -m archer.config.reference"


def test_every_key_is_explained():
    assert all(len(field.metadata["help"]) > 3 for _, _, field in leaves(TrainConfig))
