"""Engines of the embedded default, made small by the test file that asks."""

from contextlib import ExitStack

import pytest

from archer.config import compose
from archer.engines.local.engine import LocalEngine
from archer.training.traces import Traces


@pytest.fixture
def make_engine(tmp_path, request):
    """`make_engine(*overrides)`: ready for its first step; the file's `SMALL` comes before the overrides."""
    with ExitStack() as closing:
        count = 0

        def make(*overrides: str) -> LocalEngine:
            nonlocal count
            folder = f"trainer.default_local_dir={tmp_path}/run{count}"
            count += 1
            engine = LocalEngine(compose([*request.module.SMALL, folder, *overrides]))
            engine.start(None, closing)
            engine.traces = Traces(engine.config, engine.tokenizer, resumed_at=0)
            closing.callback(engine.traces.close)
            return engine

        yield make
