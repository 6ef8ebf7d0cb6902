"""The viewer's HTTP interface: client files, JSON for what is small, packed arrays for tokens."""

import json
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from archer.errors import ArcherError
from archer.trace.npz import DamagedFileError
from archer.viewer import queries
from archer.viewer.client import INDEX, Asset, client_assets, etag_of
from archer.viewer.encoding import json_bytes
from archer.viewer.explore import add_routes
from archer.viewer.export import export_group
from archer.viewer.notes import NotesOffError
from archer.viewer.runroutes import add_run_routes
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.steps import StepCache, StepData, UnreadableStepError

IMMUTABLE = "private, max-age=31536000, immutable"
"""For answers whose URL names the version of the step file: another file has another URL."""
REVALIDATE = "private, no-cache"
MAX_ROWS = 4096

IfNoneMatch = Annotated[str | None, Header()]
Metrics = Annotated[str | None, Query(max_length=4000)]


def create_app(library: Library, access: Access, *, follow: bool = False, start: str = "") -> FastAPI:
    """The application without its guard; mount it anywhere, all its addresses are relative.

    `start` is the place (`#step/group/...`) that an address without a place opens.
    """
    app = FastAPI(title="Archer viewer", docs_url=None, redoc_url=None, openapi_url=None)
    cache = StepCache(library)
    app.state.cache = cache
    _handle_errors(app, access)

    @app.get("/")
    def index(if_none_match: IfNoneMatch = None) -> Response:
        return _asset(INDEX, if_none_match)

    @app.get("/static/{name:path}")
    def static(name: str, if_none_match: IfNoneMatch = None) -> Response:
        return _asset(name, if_none_match)

    @app.get("/api/runs")
    def runs() -> Response:
        library.rescan()
        for run in library.runs:
            run.refresh()
        return _json(queries.library_json(library, follow) | {"start": start}, None)

    @app.get("/api/runs/{run}/timeline")
    def timeline(run: int, if_none_match: IfNoneMatch = None) -> Response:
        source = library.run(run)
        etag = f'"{source.refresh()}"'
        if if_none_match == etag:
            return Response(status_code=304, headers={"ETag": etag, "Cache-Control": REVALIDATE})
        return _json(queries.timeline_json(source), None, etag)

    @app.get("/api/runs/{run}/steps/{step}")
    def step_head(run: int, step: int, if_none_match: IfNoneMatch = None) -> Response:
        source = library.run(run)
        source.refresh()
        return _json(queries.step_json(source, cache.get(run, step)), if_none_match)

    def tokens(
        run: int, step: int, version: str, metrics: str | None, text: bool, rows: Callable[[StepData], Any]
    ) -> Response:
        data = cache.get(run, step)
        if data.version != version:
            raise HTTPException(409, f"Step {step} was written again meanwhile; load it anew.")
        names = None if metrics is None else [name for name in metrics.split(",") if name]
        content = queries.rows_packed(library.run(run), data, rows(data), names, text=text)
        return Response(content, media_type="application/octet-stream", headers={"Cache-Control": IMMUTABLE})

    @app.get("/api/runs/{run}/steps/{step}/{version}/groups/{group}")
    def group_tokens(
        run: int, step: int, version: str, group: int, metrics: Metrics = None, text: bool = False
    ) -> Response:
        return tokens(run, step, version, metrics, text, lambda data: data.rows_of_group(group))

    @app.get("/api/runs/{run}/steps/{step}/groups/{group}/page")
    def group_page(run: int, step: int, group: int) -> Response:
        content = export_group(library.run(run), step, group).encode()
        name = f'attachment; filename="archer-step-{step}-group-{group}.html"'
        headers = {"Content-Disposition": name, "Cache-Control": "no-store"}
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)

    @app.get("/api/runs/{run}/steps/{step}/groups/{group}/pair")
    def pair(run: int, step: int, group: int, row: int | None = None) -> Response:
        return _json(queries.pair_json(cache.get(run, step), group, row), None)

    @app.get("/api/runs/{run}/steps/{step}/{version}/rows/{first}/{count}")
    def row_tokens(
        run: int,
        step: int,
        version: str,
        first: int,
        count: int,
        metrics: Metrics = None,
        text: bool = False,
    ) -> Response:
        return tokens(run, step, version, metrics, text, lambda data: _row_range(data, first, count))

    add_run_routes(app, library, cache, _json)
    add_routes(app, library, cache)
    return app


class FixedHeaders:
    """ASGI wrapper that adds the same headers to every answer, without touching its body."""

    def __init__(self, app: Any, headers: dict[str, str]) -> None:
        self._app = app
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass one request on."""

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message["headers"], *self._headers]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _row_range(data: StepData, first: int, count: int) -> np.ndarray:
    rows = data.arrays.rows
    if not rows:
        raise ArcherError(f"step {data.step} holds no response; choose another step.")
    if not 0 <= first < rows:
        raise ArcherError(f"step {data.step} has no response {first}; it holds responses 0 to {rows - 1}.")
    if not 1 <= count <= MAX_ROWS:
        raise queries.TooMuchError(f"{count} responses were asked for, expected 1 to {MAX_ROWS} at a time.")
    return np.arange(first, min(first + count, rows))


def _handle_errors(app: FastAPI, access: Access) -> None:
    app.add_middleware(FixedHeaders, headers=access.headers())

    @app.exception_handler(ArcherError)
    def user_error(_: Request, error: ArcherError) -> Response:
        damaged = isinstance(error, UnreadableStepError | DamagedFileError)
        status = 422 if damaged else 413 if isinstance(error, queries.TooMuchError) else 404
        status = 403 if isinstance(error, NotesOffError) else status
        return _error(status, str(error))

    @app.exception_handler(RequestValidationError)
    def bad_request(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return _error(422, f"The request's {first['loc'][-1]} is wrong: {first['msg']}.")

    @app.exception_handler(HTTPException)
    def http_error(_: Request, error: HTTPException) -> Response:
        sentence = "There is nothing at this address." if error.status_code == 404 else str(error.detail)
        return _error(error.status_code, sentence)


def _error(status: int, sentence: str) -> Response:
    content = json.dumps({"error": sentence}, ensure_ascii=False).encode()
    return Response(content, status, {"Cache-Control": "no-store"}, "application/json")


def _asset(name: str, if_none_match: str | None) -> Response:
    asset = client_assets().get(name)
    if asset is None:
        raise HTTPException(404)
    # Browsers ask for the icon again at every change of the address; the modules must always be the newest.
    age = "private, max-age=3600" if asset.media_type == "image/svg+xml" else "no-cache"
    return _unless_known(asset, if_none_match, age)


def _json(value: dict[str, Any], if_none_match: str | None, etag: str | None = None) -> Response:
    content = json_bytes(value)
    return _unless_known(Asset(content, "application/json", etag or etag_of(content)), if_none_match)


def _unless_known(asset: Asset, if_none_match: str | None, age: str = REVALIDATE) -> Response:
    headers = {"ETag": asset.etag, "Cache-Control": age}
    if if_none_match == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
