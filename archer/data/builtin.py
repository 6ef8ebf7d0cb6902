"""What ships inside the package: the tiny reasoner's folder."""

from importlib.resources import files
from pathlib import Path


def tiny_reasoner_path() -> Path:
    """The folder of the tiny arithmetic reasoner, in Hugging Face format."""
    return Path(str(files("archer") / "assets" / "tiny_reasoner"))
