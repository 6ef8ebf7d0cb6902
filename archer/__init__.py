"""Archer: RL post-training for language models that leaves a token-level trace of every step."""

__version__ = "0.1.0"
