"""What went wrong, in the same shape and words for every route."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from saccade.errors import SaccadeError
from saccade.viewer import answers as a
from saccade.viewer.desk import status_of, told, unexpected
from saccade.viewer.gate import problem
from saccade.viewer.worker import GivenUpError

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
