"""The routes; README.md beside this file says what each takes and gives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from saccade import __version__
from saccade.errors import SaccadeError, UsageError
from saccade.viewer import schemas as a
from saccade.viewer import schemas as q
from saccade.viewer.export import PAGE_TYPES, Kept, offline_page, page_file
from saccade.viewer.security import Address, Gate, problem
from saccade.viewer.session import ABOUT_MODEL, Asked, Desk, status_of, told, unexpected, written
from saccade.viewer.worker import GivenUpError

# What went wrong, in the same shape and words for every route.

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": a.Problem, "description": text}
    for status, text in (
        (400, "cannot be met"),
        (403, "not from this page, or without the token"),
        (404, "not here"),
        (408, "came too slowly"),
        (409, "something is missing or does not fit"),
        (413, "too large"),
        (415, "not JSON"),
        (421, "another host"),
        (422, "of the wrong shape"),
        (500, "the model failed"),
        (503, "busy, or still opening"),
    )
}
_log = logging.getLogger("saccade.viewer")


def add_errors(app: FastAPI) -> None:
    """Tell every error as `{"error", "hint"}`."""

    async def told_so(_: Request, error: Exception) -> Response:
        assert isinstance(error, SaccadeError)
        return problem(status_of(error), **told(error))

    async def misshapen(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(422, *in_words(error.errors()))

    async def by_status(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reply = problem(error.status_code, str(error.detail).lower(), "see /api/openapi.json")
        reply.headers.update(error.headers or {})
        return reply

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def failed(_: Request, error: Exception) -> Response:
        _log.error("a question failed", exc_info=error)
        return problem(500, **told(unexpected(error)))

    app.add_exception_handler(SaccadeError, told_so)
    app.add_exception_handler(RequestValidationError, misshapen)
    app.add_exception_handler(HTTPException, by_status)
    app.add_exception_handler(GivenUpError, gone)
    app.add_exception_handler(Exception, failed)


def in_words(errors: Any) -> tuple[str, str]:
    """What is wrong with a question, in a line."""
    parts = [
        f"{'.'.join(str(part) for part in each['loc'] if part != 'body') or 'question'}: "
        f"{each['msg']}"
        for each in errors[:4]
    ]
    return "; ".join(parts)[:500], "viewer/README.md says what each question takes"


JSON = "application/json"
RunName = Annotated[str, Path(max_length=200)]


def make_app(desk: Desk, address: Address) -> FastAPI:
    """The server of one desk."""

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.create_task(desk.open())
        yield
        desk.close()
        opening.cancel()

    app = FastAPI(
        title="saccade view",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page would come from another host
        redoc_url=None,
        lifespan=living,
        responses=PROBLEMS,
    )
    add_errors(app)
    _add_page(app)
    _add_model_routes(app, desk)
    _add_gallery_routes(app, desk)
    _add_save(app, desk)
    app.add_middleware(Gate, address=address)
    return app


def _add_page(app: FastAPI) -> None:
    def served(name: str) -> Response:
        content = page_file(name)
        if content is None:
            return problem(404, f"no file {name[:80]!r}", "the page is at /")
        kind = PAGE_TYPES[name.rpartition(".")[2]]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return served("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        return served(name)


def _add_model_routes(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/status", response_model=a.Status)
    async def status() -> Response:
        """Whether the model is there, and what it is busy with."""
        return _json(desk.status())

    @app.get("/api/lenses", response_model=list[a.AboutLenses])
    async def lenses() -> Response:
        """The lenses and how good they are."""
        return _json(desk.lenses())

    @app.get("/api/roles", response_model=a.Roles)
    async def roles(request: Request) -> Response:
        """What each head is there for."""
        return await _answered(desk, request, "roles", q.NoQuestion())

    for route, shape in _SHAPES.items():
        _add_question(app, desk, route, shape)

    @app.post("/api/edit", response_class=Response, responses={200: {"content": _ZIP}})
    async def edit(request: Request, question: q.ActQuestion) -> Response:
        """Injections as a folder that `saccade edit --load` takes."""
        found = await _found(desk, request, "edit", question)
        return _download(found, "edit.zip", "application/zip")


_ZIP = {"application/zip": {"schema": {"type": "string", "format": "binary"}}}
_SHAPES: dict[str, Any] = {
    "reading": a.Reading,
    "predictions": a.Predictions,
    "measure": a.HeadMap,
    "head": a.HeadCard,
    "attention": a.Attention,
    "positions": a.Positions,
    "ranks": a.Ranks,
    "compare": a.Compared,
    "act": a.Acted,
    "trace": list[a.AnyTrace],
}
QUESTIONS: dict[str, type[q.Question]] = {**ABOUT_MODEL, "trace": q.TraceQuestion}


def _add_question(app: FastAPI, desk: Desk, route: str, shape: Any) -> None:
    kind = QUESTIONS[route]

    async def ask(request: Request, question: Any) -> Response:
        return await _answered(desk, request, route, question)

    ask.__name__ = route
    ask.__annotations__ = {"request": Request, "question": kind, "return": Response}
    app.post(f"/api/{route}", response_model=shape, description=kind.__doc__)(ask)


def _add_gallery_routes(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/runs", response_model=list[a.Run])
    async def runs() -> Response:
        """The runs in the folders that were given."""
        return await _apart(desk.gallery.runs)

    @app.get("/api/runs/{name}", response_model=a.Run)
    async def run(name: RunName) -> Response:
        """One run with its curve."""
        return await _apart(lambda: desk.gallery.run(name))

    @app.get("/api/traces", response_model=list[a.SavedTrace])
    async def traces() -> Response:
        """The saved traces in the folders that were given."""
        return await _apart(desk.gallery.traces)

    @app.get("/api/traces/{name}", response_model=a.AnyTrace)
    async def trace(name: RunName) -> Response:
        """One saved trace."""
        return await _apart(lambda: desk.gallery.saved_trace(name))


def _add_save(app: FastAPI, desk: Desk) -> None:
    html: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/html": {"schema": {"type": "string"}}}}
    }

    @app.post("/api/save", response_class=Response, responses=html)
    async def save(request: Request, question: q.SaveQuestion) -> Response:
        """The page and some answers as one file."""
        kept = [Kept("status", {}, written(desk.status()))]
        for each in question.questions:
            if each.route == "edit":
                raise UsageError("an edit is a file of its own", hint="download it from the page")
            if each.route != "status":
                answer = await answer_to(desk, each.route, each.question, is_gone=_gone(request))
                kept.append(Kept(each.route, each.question, answer))
        page = await asyncio.to_thread(offline_page, question.state, kept)
        return _download(page.encode(), "saccade.html", "text/html; charset=utf-8")


async def answer_to(
    desk: Desk,
    route: str,
    question: dict[str, Any],
    *,
    is_gone: Callable[[], Awaitable[bool]] | None = None,
) -> bytes:
    """The answer that a route gives, by its name: for saved pages and the command line.

    Raises:
        UsageError: there is no such route, or the question has another shape.
    """
    plain: dict[str, Callable[[], Any]] = {
        "status": desk.status,
        "lenses": desk.lenses,
        "runs": desk.gallery.runs,
        "traces": desk.gallery.traces,
    }
    folder, _, name = route.partition("/")
    by_name = {"runs": desk.gallery.run, "traces": desk.gallery.saved_trace}
    if name and folder in by_name:
        return written(await asyncio.to_thread(by_name[folder], name))
    if route in plain:
        return written(await asyncio.to_thread(plain[route]))
    if route not in QUESTIONS:
        known = ", ".join([*plain, *QUESTIONS, "runs/NAME", "traces/NAME"])
        raise UsageError(f"there is no route {route[:80]!r}", hint=f"routes are {known}")
    try:
        asked = Asked(route, QUESTIONS[route].model_validate(question))
    except ValidationError as error:
        what, hint = in_words(error.errors())
        raise UsageError(f"{route}: {what}", hint=hint) from error
    return await desk.answer(asked, is_gone=is_gone)


async def _answered(desk: Desk, request: Request, route: str, question: q.Question) -> Response:
    return Response(await _found(desk, request, route, question), media_type=JSON)


async def _found(desk: Desk, request: Request, route: str, question: q.Question) -> bytes:
    return await desk.answer(Asked(route, question), is_gone=_gone(request))


def _gone(request: Request) -> Callable[[], Awaitable[bool]]:
    return request.is_disconnected


async def _apart(look: Callable[[], Any]) -> Response:
    """Looks into folders beside the event loop, which others wait for."""
    return Response(await asyncio.to_thread(lambda: written(look())), media_type=JSON)


def _json(answer: Any) -> Response:
    return Response(written(answer), media_type=JSON)


def _download(content: bytes, name: str, kind: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)
