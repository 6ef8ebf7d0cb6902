"""How to install what an optional part of Archer needs."""


def install_hint(extra: str) -> str:
    """Return the command that adds an extra, held to the versions that Archer is tested with."""
    return f'pip install -c constraints.txt -e ".[{extra}]" in Archer\'s checkout'
