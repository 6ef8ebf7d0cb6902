"""Configuration: one tree in verl's names, parsed once into frozen dataclasses."""

from archer.config.compose import compose, default_config, recipes
from archer.config.root import TrainConfig

__all__ = ["TrainConfig", "compose", "default_config", "recipes"]
