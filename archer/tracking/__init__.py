"""Where metrics go: `metrics.jsonl` always, TensorBoard, W&B or trackio when asked, the console."""

from archer.tracking.jsonl import JsonlTracker
from archer.tracking.samples import ShownResponse, StepResponse, ValidationSample
from archer.tracking.trackers import RunInfo, Tracker, make_trackers

__all__ = [
    "JsonlTracker",
    "RunInfo",
    "ShownResponse",
    "StepResponse",
    "Tracker",
    "ValidationSample",
    "make_trackers",
]
