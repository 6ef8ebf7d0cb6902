"""Token influence: which tokens pull towards the accepted and away from the rejected responses.

Names are imported when they are first used, so that the knobs can be read without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archer.influence.config import InfluenceConfig
    from archer.influence.groups import Group, Selection, groups_from, select_groups
    from archer.influence.layout import Layout
    from archer.influence.target import TargetTracer
    from archer.influence.tracer import InfluenceTracer

__all__ = [
    "Group",
    "InfluenceConfig",
    "InfluenceTracer",
    "Layout",
    "Selection",
    "TargetTracer",
    "groups_from",
    "select_groups",
]

_HOMES = {
    "Group": "groups",
    "InfluenceConfig": "config",
    "InfluenceTracer": "tracer",
    "Layout": "layout",
    "Selection": "groups",
    "TargetTracer": "target",
    "groups_from": "groups",
    "select_groups": "groups",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
