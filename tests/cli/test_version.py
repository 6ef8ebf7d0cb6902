"""The version, asked for in either way."""

import pytest
from typer.testing import CliRunner

from archer import __version__
from archer.cli import app


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_the_version_is_printed_alone(asked):
    result = CliRunner().invoke(app, [asked])
    assert (result.exit_code, result.output) == (0, f"{__version__}\n")
