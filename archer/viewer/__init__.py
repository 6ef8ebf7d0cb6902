"""See what every token did: `archer view`, `archer export`, and `show` for notebooks."""

from archer.viewer.notebook import show

__all__ = ["show"]
