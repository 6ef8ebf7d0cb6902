"""Routes about a run as a whole: its metrics, its most telling group, and the notes beside it.

Writing is for the viewer's own page only: the body must be JSON, which no foreign page can send without being
asked first, and the `Origin` must be the address that the request came to.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from archer.viewer.metricsfile import MAX_NAME, POINTS
from archer.viewer.notes import PLACE
from archer.viewer.runs import Library
from archer.viewer.steps import StepCache
from archer.viewer.telling import telling_group

MAX_BODY = 32 * 2**10
MAX_SERIES = 64
"""Series of one answer."""

Answer = Callable[[dict[str, Any], str | None], Response]
"""Makes the JSON answer, or 304 where the browser has it already."""
IfNoneMatch = Annotated[str | None, Header()]
Names = Annotated[list[str], Query(max_length=MAX_SERIES)]


def add_run_routes(app: FastAPI, library: Library, cache: StepCache, answer: Answer) -> None:
    """Put them into an application."""

    @app.get("/api/runs/{run}/metrics")
    def metrics(run: int, if_none_match: IfNoneMatch = None) -> Response:
        return answer(library.run(run).metrics.index_json(), if_none_match)

    @app.get("/api/runs/{run}/metrics/series")
    def series(run: int, name: Names, points: int = POINTS, if_none_match: IfNoneMatch = None) -> Response:
        wanted = [each for each in name if len(each) <= MAX_NAME]
        return answer(library.run(run).metrics.series_json(wanted, points), if_none_match)

    @app.get("/api/runs/{run}/telling")
    def telling(run: int, if_none_match: IfNoneMatch = None) -> Response:
        source = library.run(run)
        source.refresh()
        found = telling_group(source, run, cache)
        return answer({"telling": None if found is None else found.to_json()}, if_none_match)

    @app.get("/api/runs/{run}/notes")
    def notes(run: int, if_none_match: IfNoneMatch = None) -> Response:
        return answer(library.run(run).notes.to_json(), if_none_match)

    @app.post("/api/runs/{run}/notes")
    async def add_note(run: int, request: Request) -> Response:
        _own_page(request)
        body = await _json_body(request)
        text, place = body.get("text"), {name: body.get(name) for name in PLACE}
        if not isinstance(text, str) or not all(_whole(value) for value in place.values()):
            raise HTTPException(422, "A note has a text, and whole numbers for step, group, response, token.")
        note = await run_in_threadpool(library.run(run).notes.add, text, place)
        return answer({"note": note}, None)

    @app.delete("/api/runs/{run}/notes/{note}")
    def delete_note(run: int, note: str, request: Request) -> Response:
        _own_page(request)
        library.run(run).notes.delete(note)
        return answer({"deleted": note}, None)


def _whole(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _own_page(request: Request) -> None:
    """Refuse what another page sends. Browsers name the origin of a POST or DELETE; programs need not."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    foreign = (
        origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    )
    if foreign or site not in (None, "same-origin"):
        raise HTTPException(403, "Notes can be changed from the viewer's own page only.")


async def _json_body(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "A note is sent as application/json.")
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY:
            raise HTTPException(413, f"A note takes at most {MAX_BODY:,} bytes.")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(422, "A note is a JSON object.")
    return body
