"""Archer's configuration inside verl's: every process reads it back from the part of the tree it is given."""

from functools import lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from archer.config.parse import parse
from archer.config.root import TrainConfig


def archer_config(section: DictConfig) -> TrainConfig:
    """Return the configuration that `translate` put into `trainer` and `actor_rollout_ref`."""
    return _parsed(OmegaConf.to_yaml(section.archer))


@lru_cache(maxsize=1)
def _parsed(text: str) -> TrainConfig:
    tree: Any = OmegaConf.to_container(OmegaConf.create(text))
    return parse(TrainConfig, tree)
