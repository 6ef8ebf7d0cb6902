"""Where metrics go: `metrics.jsonl` always, TensorBoard, W&B or trackio when asked, the console."""

from archer.tracking.jsonl import JsonlTracker
from archer.tracking.trackers import RunInfo, Tracker, ValidationSample, make_trackers

__all__ = [
    "JsonlTracker",
    "RunInfo",
    "Tracker",
    "ValidationSample",
    "make_trackers",
]
