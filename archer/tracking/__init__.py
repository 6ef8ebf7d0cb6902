"""Where metrics go: `metrics.jsonl` always, TensorBoard, W&B or trackio when asked."""

from archer.tracking.base import RunInfo, Tracker
from archer.tracking.jsonl import JsonlTracker
from archer.tracking.optional import make_trackers

__all__ = ["JsonlTracker", "RunInfo", "Tracker", "make_trackers"]
