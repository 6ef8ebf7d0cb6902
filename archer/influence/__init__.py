from archer.influence.config import InfluenceConfig
from archer.influence.groups import Group, Selection, select_groups
from archer.influence.layout import Layout
from archer.influence.tracer import InfluenceTracer

__all__ = ["Group", "InfluenceConfig", "InfluenceTracer", "Layout", "Selection", "select_groups"]
