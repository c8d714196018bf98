"""The server: the routes of `routes.py` under /api; the same answers without a server."""

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
from saccade.viewer.export import PAGE_TYPES, SavedAnswer, json_bytes, offline_page, page_file
from saccade.viewer.routes import (
    Route,
    RouteCall,
    RouteDescription,
    check_question,
    describe_errors,
    find_route,
)
from saccade.viewer.schemas import SaveQuestion
from saccade.viewer.security import Address, SecurityMiddleware, problem
from saccade.viewer.session import Problem, Session, problem_fields, status_of, unexpected
from saccade.viewer.worker import JobCancelledError, ViewConfig

# Errors: the same JSON for every route.

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in (
        (400, "cannot be answered"),
        (403, "not from this page, or without the token"),
        (404, "not found"),
        (408, "the request arrived too slowly"),
        (409, "something is missing or does not fit"),
        (413, "too large"),
        (415, "not JSON"),
        (421, "another host"),
        (422, "the question is invalid"),
        (500, "the model failed"),
        (503, "busy, or still opening"),
    )
}
_log = logging.getLogger("saccade.viewer")


def add_errors(app: FastAPI) -> None:
    """Return every error as `{"error", "hint"}`."""

    async def saccade_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, SaccadeError)
        return problem(status_of(error), **problem_fields(error))

    async def validation_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(422, *describe_errors(error.errors()))

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reply = problem(error.status_code, str(error.detail).lower(), "see /api/openapi.json")
        reply.headers.update(error.headers or {})
        return reply

    async def client_gone(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def unexpected_error(_: Request, error: Exception) -> Response:
        _log.error("a question failed", exc_info=error)
        return problem(500, **problem_fields(unexpected(error)))

    app.add_exception_handler(SaccadeError, saccade_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(JobCancelledError, client_gone)
    app.add_exception_handler(Exception, unexpected_error)


JSON = "application/json"
TYPES = {**PAGE_TYPES, "zip": "application/zip"}
FILE = {"schema": {"type": "string", "format": "binary"}}
RunName = Annotated[str, Path(max_length=200)]


def make_app(session: Session, address: Address) -> FastAPI:
    """The web application of a session."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.create_task(session.open())
        yield
        session.close()
        opening.cancel()

    # No documentation page: it would load scripts from another host. The schema has its own route.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    add_errors(app)
    _add_page(app)
    _add_schema(app, session)
    for route in session.routes:
        _add_route(app, session, route)
    _add_save(app, session)
    app.add_middleware(SecurityMiddleware, address=address)
    return app


def _add_schema(app: FastAPI, session: Session) -> None:
    schema = cache(lambda: schema_of(session))

    @app.get("/api/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(await asyncio.to_thread(lambda: json_bytes(schema())), media_type=JSON)


def schema_of(session: Session) -> dict[str, Any]:
    """Questions and answers of all routes, as OpenAPI.

    FastAPI derives the schema of an answer from the dataclass that the method of its route returns.
    These dataclasses are in modules that import torch, and the page must not wait for that: they
    are imported here, when the schema is requested.
    """
    app = FastAPI(title="saccade view", version=__version__, responses=PROBLEMS)
    for route in session.routes:
        _add_route(app, session, route, route.describe())
    _add_save(app, session)
    schema = app.openapi()
    for each in schema["components"]["schemas"].values():
        each.setdefault("additionalProperties", False)  # answers have the listed keys only
    return schema


def _add_route(
    app: FastAPI, session: Session, route: Route[Any], description: RouteDescription | None = None
) -> None:
    async def answer(request: Request, call: RouteCall) -> Response:
        found = await session.answer(call, is_gone=request.is_disconnected)
        return _download(found, route.file) if route.file else Response(found, media_type=JSON)

    async def ask(request: Request) -> Response:
        return await answer(
            request, RouteCall(route, None if route.question is None else route.question())
        )

    async def ask_by_name(request: Request, name: RunName) -> Response:
        return await answer(request, RouteCall(route, name=name))

    async def ask_question(request: Request, question: Any) -> Response:
        return await answer(request, RouteCall(route, question))

    ask_question.__annotations__["question"] = route.question
    options: dict[str, Any] = {"response_model": None, "response_class": Response}
    if description is not None:
        options["description"] = description.about
        if route.file:
            options["responses"] = {200: {"content": {TYPES[_extension(route.file)]: FILE}}}
        else:
            options |= {"response_model": description.answer, "response_class": JSONResponse}
    is_post = route.verb == "POST"
    app.add_api_route(
        f"/api/{route.path}",
        ask_question if is_post else ask_by_name if route.takes_name else ask,
        methods=[route.verb],
        name=route.path.replace("/{name}", " by name"),
        **options,
    )


def _add_page(app: FastAPI) -> None:
    def serve_file(name: str) -> Response:
        content = page_file(name)
        if content is None:
            return problem(404, f"no file {name[:80]!r}", "the page is at /")
        kind = PAGE_TYPES[_extension(name)]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return serve_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        return serve_file(name)


def _add_save(app: FastAPI, session: Session) -> None:
    html: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/html": {"schema": {"type": "string"}}}}
    }

    @app.post("/api/save", response_class=Response, responses=html)
    async def save(request: Request, question: SaveQuestion) -> Response:
        """The page and some answers as one file."""
        answers = [SavedAnswer("status", {}, json_bytes(session.status()))]
        for each in question.questions:
            call = check_question(each.route, each.question, session.routes)
            if call.route.file:
                raise UsageError(
                    f"{each.route} is a file of its own", hint="download it from the page"
                )
            if each.route != "status":
                answer = await session.answer(call, is_gone=request.is_disconnected)
                answers.append(SavedAnswer(each.route, each.question, answer))
        page = await asyncio.to_thread(offline_page, question.state, answers)
        return _download(page.encode(), "saccade.html")


async def answer_to(session: Session, route: str, question: dict[str, Any]) -> bytes:
    """The answer of a route by its path, for saved pages and the command line.

    Raises:
        UsageError: no such route, or the question is invalid.
    """
    return await session.answer(check_question(route, question, session.routes))


def _download(content: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=TYPES[_extension(name)], headers=headers)


def _extension(name: str) -> str:
    return name.rpartition(".")[2]


# The same answers without a server: for the command line and for saved pages.

T = TypeVar("T")


def ask_once(config: ViewConfig, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """The answers to some (route, question) pairs, without a server.

    Raises:
        SaccadeError: the model cannot be opened, or a question cannot be answered.
    """

    async def ask() -> list[bytes]:
        session = Session(config)
        try:
            if any(find_route(route).route.source.needs_model for route, _ in questions):
                await session.open()
            return [await answer_to(session, route, question) for route, question in questions]
        finally:
            session.close()

    return _run(ask())


def page_about(config: ViewConfig, text: str) -> str:
    """A page about one prompt: the head map, every head card, the grid of the residual stream."""

    async def ask() -> list[SavedAnswer]:
        session = Session(config)
        try:
            await session.open()
            status = session.status()
            answers = []
            for route, question in _questions(status, text):
                try:
                    answer = await answer_to(session, route, question)
                except SaccadeError:
                    if route == "reading":
                        raise
                    continue  # this model or these lenses have no such answer
                answers.append(SavedAnswer(route, question, answer))
            return answers
        finally:
            session.close()

    return offline_page({"screen": "prompt", "text": text}, _run(ask()), title=text[:80])


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; in a notebook, where a loop is running already, in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


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
