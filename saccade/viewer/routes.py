"""Every route in one table: a row says what is asked, what answers it, and where that is done.

To add a route, write the method that answers it and add a row to `ROUTES`: the server, its schema,
`saccade view --print` and saved pages then have it. The shape of the answer is what the method says
that it gives; README.md beside this file has an example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

from saccade.errors import UsageError
from saccade.viewer import schemas as q

if TYPE_CHECKING:
    from saccade.viewer.runs import Gallery
    from saccade.viewer.service import ReadingRoom
    from saccade.viewer.session import Desk

Owner = TypeVar("Owner")
NAME = "{name}"


@dataclass(frozen=True)
class Source(Generic[Owner]):
    """An object whose methods answer questions."""

    of: Callable[[Desk], Owner]
    """Finds it; refuses where the model is not open."""
    kind: Callable[[], Any]
    """Imports its class, which for the model is an import of torch: a method that is looked up in
    the class says the same of its answer."""
    reads_files: bool = False
    """Answers come from a thread of their own unless the worker gives them."""


def _session() -> type[Desk]:
    from saccade.viewer.session import Desk

    return Desk


def _folders() -> type[Gallery]:
    from saccade.viewer.runs import Gallery

    return Gallery


def _model() -> type[ReadingRoom]:
    from saccade.viewer.service import ReadingRoom

    return ReadingRoom


SESSION = Source(lambda desk: desk, _session)
FOLDERS = Source(lambda desk: desk.gallery, _folders, reads_files=True)
MODEL = Source(lambda desk: desk.room, _model)


@dataclass(frozen=True)
class Route(Generic[Owner]):
    """One route; without a question it is a GET."""

    path: str
    """Behind ``/api/``: ``reading``; ``runs/{name}`` gives a name to its method."""
    source: Source[Owner]
    method: Callable[[Owner], Callable[..., Any]]
    """The method that answers: it is given the question or the name, and the progress of work."""
    question: type[q.Question] | None = None
    by_worker: bool = False
    """Whether it waits for its turn with the model, and its answer is kept."""
    file: str = ""
    """The name of the file that it gives instead of JSON."""

    @property
    def verb(self) -> str:
        """POST where there is something to say."""
        return "POST" if self.question is not None and self.question.model_fields else "GET"

    @property
    def takes_name(self) -> bool:
        """Whether the last part of its path is a name."""
        return self.path.endswith(NAME)

    def described(self) -> Described:
        """What the schema says of it; imports what answers it."""
        method = self.method(self.source.kind())
        shape = inspect.signature(method, eval_str=True).return_annotation
        return Described(inspect.getdoc(method) or "", shape)


class Described(NamedTuple):
    """A route in words, and the type of its answer."""

    about: str
    shape: Any


class Asked(NamedTuple):
    """A checked question and where it goes."""

    route: Route[Any]
    question: q.Question | None = None
    name: str = ""

    @property
    def key(self) -> str:
        """The same for two questions that mean the same."""
        said = "" if self.question is None else self.question.model_dump_json()
        return f"{self.route.path} {self.name} {said}"

    @property
    def given(self) -> list[Any]:
        """What the method is given."""
        named = [self.name] if self.route.takes_name else []
        return [*named, *([] if self.question is None else [self.question])]


ROUTES = (
    Route("status", SESSION, lambda desk: desk.now),
    Route("lenses", MODEL, lambda room: room.about),
    Route("runs", FOLDERS, lambda gallery: gallery.runs),
    Route("traces", FOLDERS, lambda gallery: gallery.traces),
    Route("reading", MODEL, lambda room: room.reading, q.ReadingQuestion, by_worker=True),
    Route(
        "predictions", MODEL, lambda room: room.predictions, q.PredictionsQuestion, by_worker=True
    ),
    Route("measure", MODEL, lambda room: room.measure, q.MeasureQuestion, by_worker=True),
    Route("head", MODEL, lambda room: room.head, q.HeadQuestion, by_worker=True),
    Route("attention", MODEL, lambda room: room.attention, q.AttentionQuestion, by_worker=True),
    Route("roles", MODEL, lambda room: room.roles, q.NoQuestion, by_worker=True),
    Route("positions", MODEL, lambda room: room.positions, q.PositionsQuestion, by_worker=True),
    Route("ranks", MODEL, lambda room: room.ranks, q.RanksQuestion, by_worker=True),
    Route("compare", MODEL, lambda room: room.compare, q.CompareQuestion, by_worker=True),
    Route("act", MODEL, lambda room: room.act, q.ActQuestion, by_worker=True),
    Route("edit", MODEL, lambda room: room.edit, q.ActQuestion, by_worker=True, file="edit.zip"),
    Route("trace", FOLDERS, lambda gallery: gallery.trace, q.TraceQuestion, by_worker=True),
    Route("runs/{name}", FOLDERS, lambda gallery: gallery.run),
    Route("traces/{name}", FOLDERS, lambda gallery: gallery.saved_trace),
)


def find_route(path: str, routes: Sequence[Route[Any]] = ROUTES) -> Asked:
    """The route of a path, with the name in it: ``runs/NAME`` is asked of ``runs/{name}``.

    >>> find_route("runs/adding").name
    'adding'

    Raises:
        UsageError: there is none.
    """
    folder, _, name = path.partition("/")
    by_path = {route.path: route for route in routes}
    found = by_path.get(f"{folder}/{NAME}" if name else path)
    if found is None:
        known = ", ".join(each.replace(NAME, "NAME") for each in by_path)
        raise UsageError(f"there is no route {path[:80]!r}", hint=f"routes are {known}")
    return Asked(found, name=name)


def checked(path: str, question: dict[str, Any], routes: Sequence[Route[Any]] = ROUTES) -> Asked:
    """A question that came by the name of its route, not through the server.

    Raises:
        UsageError: there is no such route, or the question has another shape.
    """
    asked = find_route(path, routes)
    if asked.route.question is None:
        return asked
    try:
        return asked._replace(question=asked.route.question.model_validate(question))
    except ValidationError as error:
        what, hint = in_words(error.errors())
        raise UsageError(f"{path}: {what}", hint=hint) from error


def in_words(errors: Any) -> tuple[str, str]:
    """What is wrong with a question, in a line."""
    parts = [
        f"{'.'.join(str(part) for part in each['loc'] if part != 'body') or 'question'}: "
        f"{each['msg']}"
        for each in errors[:4]
    ]
    return "; ".join(parts)[:500], "viewer/README.md says what each question takes"
