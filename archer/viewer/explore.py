"""Routes that look across tokens, groups and steps: scatter plots, extremes, one prompt's course, search."""

import threading
import time
from collections import OrderedDict
from typing import Annotated, Any, cast

from fastapi import FastAPI, Query, Response
from starlette.exceptions import HTTPException

from archer.errors import ArcherError
from archer.viewer import textsearch
from archer.viewer.encoding import json_bytes
from archer.viewer.promptindex import PromptIndex
from archer.viewer.regexprocess import RegexError, RegexProcess
from archer.viewer.runs import Library, TracedRun
from archer.viewer.steps import StepCache, StepData, load_step
from archer.viewer.tokens import MAX_LISTED, Order, Window, points_packed, tokens_json

SEARCH_SECONDS = 0.5
"""How long one answer of a search may be in the making; the client asks for the rest."""
KEPT_RESULTS = 4000
"""Results of single steps that are kept, so that a search asked again is answered at once."""

Name = Annotated[str, Query(max_length=80)]
Prompt = Annotated[str, Query(max_length=80)]
Text = Annotated[str, Query(max_length=textsearch.MAX_QUERY)]


class RunSearch:
    """Answers search over the steps of runs, a bounded time at a time, and remembers what steps said."""

    def __init__(self, library: Library, regexes: RegexProcess) -> None:
        self._library = library
        self._regexes = regexes
        self._known: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, run: int, query: textsearch.Query, after: int, seconds: float) -> dict[str, Any]:
        """Results of the steps after `after` as far as time allows; `next` is None at the end of the run."""
        source = self._library.run(run)
        until = time.monotonic() + seconds
        steps = [entry.step for entry in source.timeline()]
        results: list[dict[str, Any]] = []
        for step in (step for step in steps if step > after):
            if results and time.monotonic() > until:
                return {"steps": len(steps), "results": results, "next": results[-1]["step"]}
            results.append(self._step(run, source, query, step))
        return {"steps": len(steps), "results": results, "next": None}

    def _step(self, run: int, source: TracedRun, query: textsearch.Query, step: int) -> dict[str, Any]:
        key = (run, step, source.version(step), query)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        try:
            result = textsearch.step_result(query, source, load_step(source, step), self._regexes)
        except RegexError:
            raise
        except ArcherError as error:
            result = {"step": step, "problem": str(error)}
        with self._lock:
            self._known[key] = result
            while len(self._known) > KEPT_RESULTS:
                self._known.popitem(last=False)
        return result


def add_routes(app: FastAPI, library: Library, cache: StepCache) -> None:
    """Add the routes to the viewer's application."""
    regexes = RegexProcess()
    search = RunSearch(library, regexes)
    indexes: dict[int, PromptIndex] = {}
    app.router.on_shutdown.append(regexes.close)

    def step_data(run: int, step: int, version: str) -> StepData:
        data = cache.get(run, step)
        if data.version != version:
            raise HTTPException(409, f"Step {step} was written again meanwhile; load it anew.")
        return data

    @app.get("/api/runs/{run}/steps/{step}/{version}/points")
    def points(run: int, step: int, version: str, x: Name, y: Name) -> Response:
        content = points_packed(step_data(run, step, version), x, y)
        return Response(content, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    @app.get("/api/runs/{run}/steps/{step}/{version}/tokens")
    def tokens(
        run: int,
        step: int,
        version: str,
        metric: Name,
        order: Name,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
        x: Name = "",
        y: Name = "",
        low: tuple[float, float] = Query((float("-inf"), float("-inf"))),
        high: tuple[float, float] = Query((float("inf"), float("inf"))),
    ) -> Response:
        window = Window(x, y, low, high) if x and y else None
        data = step_data(run, step, version)
        return _json(tokens_json(library.run(run), data, metric, cast(Order, order), limit, window))

    @app.get("/api/runs/{run}/prompt")
    def prompt(run: int, id: Prompt) -> Response:
        source = library.run(run)
        source.refresh()
        return _json(indexes.setdefault(run, PromptIndex(source)).look(id))

    @app.get("/api/runs/{run}/search")
    def run_search(run: int, q: Text, mode: Name = "word", case: bool = False, after: int = -1) -> Response:
        query = textsearch.Query(q, cast(textsearch.Mode, mode), case)
        library.run(run).refresh()
        try:
            return _json(search.look(run, query, after, SEARCH_SECONDS))
        except RegexError as error:
            raise HTTPException(400, str(error)) from error


def _json(value: dict[str, Any]) -> Response:
    return Response(json_bytes(value), media_type="application/json", headers={"Cache-Control": "no-store"})
