"""The server: routes of `routes.py` under /api, errors in words; the same without a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from saccade import __version__
from saccade.errors import SaccadeError, UsageError
from saccade.viewer.export import PAGE_TYPES, Kept, offline_page, page_file, written
from saccade.viewer.routes import MODEL, Asked, Described, Route, checked, find_route, in_words
from saccade.viewer.schemas import SaveQuestion
from saccade.viewer.security import Address, Gate, problem
from saccade.viewer.session import Desk, Problem, status_of, told, unexpected
from saccade.viewer.worker import GivenUpError, ViewConfig

# What went wrong, in the same shape and words for every route.

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
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


JSON = "application/json"
TYPES = {**PAGE_TYPES, "zip": "application/zip"}
FILE = {"schema": {"type": "string", "format": "binary"}}
RunName = Annotated[str, Path(max_length=200)]


def make_app(desk: Desk, address: Address) -> FastAPI:
    """The server of one desk."""

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.create_task(desk.open())
        yield
        desk.close()
        opening.cancel()

    # No page of documents: it would come from another host. The schema has a route of its own.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=living)
    add_errors(app)
    _add_page(app)
    _add_schema(app, desk)
    for route in desk.routes:
        _add_route(app, desk, route)
    _add_save(app, desk)
    app.add_middleware(Gate, address=address)
    return app


def _add_schema(app: FastAPI, desk: Desk) -> None:
    schema = cache(lambda: schema_of(desk))

    @app.get("/api/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(await asyncio.to_thread(lambda: written(schema())), media_type=JSON)


def schema_of(desk: Desk) -> dict[str, Any]:
    """What can be asked and what is answered, as OpenAPI.

    FastAPI takes the shapes of answers from the dataclasses that the methods of the routes give.
    These are in modules that import torch, for which the page does not wait: so they are looked at
    here, when somebody asks for the schema.
    """
    app = FastAPI(title="saccade view", version=__version__, responses=PROBLEMS)
    for route in desk.routes:
        _add_route(app, desk, route, route.described())
    _add_save(app, desk)
    schema = app.openapi()
    for shape in schema["components"]["schemas"].values():
        shape.setdefault("additionalProperties", False)  # what is not listed is not in an answer
    return schema


def _add_route(
    app: FastAPI, desk: Desk, route: Route[Any], described: Described | None = None
) -> None:
    async def answer(request: Request, asked: Asked) -> Response:
        found = await desk.answer(asked, is_gone=request.is_disconnected)
        return _download(found, route.file) if route.file else Response(found, media_type=JSON)

    async def ask(request: Request) -> Response:
        return await answer(
            request, Asked(route, None if route.question is None else route.question())
        )

    async def ask_by_name(request: Request, name: RunName) -> Response:
        return await answer(request, Asked(route, name=name))

    async def ask_question(request: Request, question: Any) -> Response:
        return await answer(request, Asked(route, question))

    ask_question.__annotations__["question"] = route.question
    shown: dict[str, Any] = {"response_model": None, "response_class": Response}
    if described is not None:
        shown["description"] = described.about
        if route.file:
            shown["responses"] = {200: {"content": {TYPES[_ending(route.file)]: FILE}}}
        else:
            shown |= {"response_model": described.shape, "response_class": JSONResponse}
    is_post = route.verb == "POST"
    app.add_api_route(
        f"/api/{route.path}",
        ask_question if is_post else ask_by_name if route.takes_name else ask,
        methods=[route.verb],
        name=route.path.replace("/{name}", " by name"),
        **shown,
    )


def _add_page(app: FastAPI) -> None:
    def served(name: str) -> Response:
        content = page_file(name)
        if content is None:
            return problem(404, f"no file {name[:80]!r}", "the page is at /")
        kind = PAGE_TYPES[_ending(name)]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return served("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        return served(name)


def _add_save(app: FastAPI, desk: Desk) -> None:
    html: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/html": {"schema": {"type": "string"}}}}
    }

    @app.post("/api/save", response_class=Response, responses=html)
    async def save(request: Request, question: SaveQuestion) -> Response:
        """The page and some answers as one file."""
        kept = [Kept("status", {}, written(desk.status()))]
        for each in question.questions:
            asked = checked(each.route, each.question, desk.routes)
            if asked.route.file:
                raise UsageError(
                    f"an {each.route} is a file of its own", hint="download it from the page"
                )
            if each.route != "status":
                answer = await desk.answer(asked, is_gone=request.is_disconnected)
                kept.append(Kept(each.route, each.question, answer))
        page = await asyncio.to_thread(offline_page, question.state, kept)
        return _download(page.encode(), "saccade.html")


async def answer_to(desk: Desk, route: str, question: dict[str, Any]) -> bytes:
    """The answer that a route gives, by its name: for saved pages and the command line.

    Raises:
        UsageError: there is no such route, or the question has another shape.
    """
    return await desk.answer(checked(route, question, desk.routes))


def _download(content: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=TYPES[_ending(name)], headers=headers)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


# The same answers without a server: for the command line and for saved pages.

T = TypeVar("T")


def ask_once(config: ViewConfig, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """The answers to some questions, by route.

    Raises:
        SaccadeError: the model cannot be opened, or a question cannot be met.
    """

    async def ask() -> list[bytes]:
        desk = Desk(config)
        try:
            if any(find_route(route).route.source is MODEL for route, _ in asked):
                await desk.open()
            return [await answer_to(desk, route, question) for route, question in asked]
        finally:
            desk.close()

    return _finished(ask())


def page_about(config: ViewConfig, text: str) -> str:
    """A page about one prompt: the head map, every head card, the grid of the residual stream."""

    async def ask() -> list[Kept]:
        desk = Desk(config)
        try:
            await desk.open()
            status = desk.status()
            kept = []
            for route, question in _questions(status, text):
                try:
                    answer = await answer_to(desk, route, question)
                except SaccadeError:
                    if route == "reading":
                        raise
                    continue  # what this model or these lenses do not have
                kept.append(Kept(route, question, answer))
            return kept
        finally:
            desk.close()

    return offline_page({"screen": "prompt", "text": text}, _finished(ask()), title=text[:80])


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """The result; in a notebook, whose own loop is running, from a thread beside it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()


def _questions(status: dict[str, Any], text: str) -> list[tuple[str, dict[str, Any]]]:
    layers = [] if status["model"] is None else status["model"]["layers"]
    heads = [
        {"text": text, "layer": each["layer"], "head": head}
        for each in layers
        for head in range(each["n_heads"])
    ]
    lenses = [None, *status["lenses"]]
    return [
        ("status", {}),
        *(("reading", {"text": text, **({"lens": lens} if lens else {})}) for lens in lenses),
        ("predictions", {"text": text}),
        *(
            ("measure", {"text": text, "measure": measure})
            for measure in ("lens", "gain", "fidelity", "direct", "entropy")
        ),
        ("positions", {"text": text}),
        ("lenses", {}),
        ("roles", {}),
        *(("head", each) for each in heads),
        *(("attention", each) for each in heads),
    ]
