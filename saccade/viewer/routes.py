"""All routes in one table: each row has the question, the method that answers it, and who runs it.

To add a route, write the method that answers it and add a row to `ROUTES`: the server, its schema,
`saccade view --print` and saved pages then have it. The schema of the answer is the return type of
the method; README.md in this folder has an example.
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
    from saccade.viewer.atlas_service import AtlasService
    from saccade.viewer.effect_service import EffectService
    from saccade.viewer.reading_service import ReadingService
    from saccade.viewer.runs import Gallery
    from saccade.viewer.session import Session

Owner = TypeVar("Owner")
NAME = "{name}"


@dataclass(frozen=True)
class Source(Generic[Owner]):
    """An object whose methods answer questions."""

    of: Callable[[Session], Owner]
    """Gets it from the session; raises if the model is not open."""
    kind: Callable[[], Any]
    """Imports its class, to read the return types of its methods. For the model this imports
    torch."""
    reads_files: bool = False
    """True runs its methods in a thread, unless the worker does."""
    needs_model: bool = False
    """True if there are no answers before the model is open."""


def _session() -> type[Session]:
    from saccade.viewer.session import Session

    return Session


def _folders() -> type[Gallery]:
    from saccade.viewer.runs import Gallery

    return Gallery


def _readings() -> type[ReadingService]:
    from saccade.viewer.reading_service import ReadingService

    return ReadingService


def _effects() -> type[EffectService]:
    from saccade.viewer.effect_service import EffectService

    return EffectService


def _atlas() -> type[AtlasService]:
    from saccade.viewer.atlas_service import AtlasService

    return AtlasService


SESSION = Source(lambda session: session, _session)
FOLDERS = Source(lambda session: session.gallery, _folders, reads_files=True)
READINGS = Source(lambda session: session.services.readings, _readings, needs_model=True)
EFFECTS = Source(lambda session: session.services.effects, _effects, needs_model=True)
ATLAS = Source(lambda session: session.atlas, _atlas, reads_files=True)


@dataclass(frozen=True)
class Route(Generic[Owner]):
    """One route; a GET if it takes no question."""

    path: str
    """After ``/api/``: ``reading``; ``runs/{name}`` passes the name to its method."""
    source: Source[Owner]
    method: Callable[[Owner], Callable[..., Any]]
    """The method that answers. Its arguments: the question or the name, then `progress` if the
    worker runs it."""
    question: type[q.Question] | None = None
    by_worker: bool = False
    """True queues it for the worker and caches its answer."""
    file: str = ""
    """File name, if the answer is a file instead of JSON."""

    @property
    def verb(self) -> str:
        """POST if the question has fields."""
        return "POST" if self.question is not None and self.question.model_fields else "GET"

    @property
    def takes_name(self) -> bool:
        """Whether the last part of its path is a name."""
        return self.path.endswith(NAME)

    def describe(self) -> RouteDescription:
        """Its entry in the schema; imports the class that answers."""
        method = self.method(self.source.kind())
        answer = inspect.signature(method, eval_str=True).return_annotation
        return RouteDescription(inspect.getdoc(method) or "", answer)


class RouteDescription(NamedTuple):
    """Description of a route, and the type of its answer."""

    about: str
    answer: Any


class RouteCall(NamedTuple):
    """A route with its checked question or name."""

    route: Route[Any]
    question: q.Question | None = None
    name: str = ""

    @property
    def key(self) -> str:
        """Key of the cache: equal for equal questions."""
        question = "" if self.question is None else self.question.model_dump_json()
        return f"{self.route.path} {self.name} {question}"

    @property
    def arguments(self) -> list[Any]:
        """Arguments of the method."""
        named = [self.name] if self.route.takes_name else []
        return [*named, *([] if self.question is None else [self.question])]


ROUTES = (
    Route("status", SESSION, lambda session: session.now),
    Route("lenses", READINGS, lambda readings: readings.about),
    Route("runs", FOLDERS, lambda gallery: gallery.runs),
    Route("traces", FOLDERS, lambda gallery: gallery.traces),
    Route(
        "reading", READINGS, lambda readings: readings.reading, q.ReadingQuestion, by_worker=True
    ),
    Route(
        "predictions",
        READINGS,
        lambda readings: readings.predictions,
        q.PredictionsQuestion,
        by_worker=True,
    ),
    Route(
        "measure", READINGS, lambda readings: readings.measure, q.MeasureQuestion, by_worker=True
    ),
    Route("head", READINGS, lambda readings: readings.head, q.HeadQuestion, by_worker=True),
    Route(
        "agreement", READINGS, lambda readings: readings.agreement, q.HeadQuestion, by_worker=True
    ),
    Route(
        "attention",
        READINGS,
        lambda readings: readings.attention,
        q.AttentionQuestion,
        by_worker=True,
    ),
    Route("roles", READINGS, lambda readings: readings.roles, q.NoQuestion, by_worker=True),
    Route(
        "positions",
        READINGS,
        lambda readings: readings.positions,
        q.PositionsQuestion,
        by_worker=True,
    ),
    Route("ranks", READINGS, lambda readings: readings.ranks, q.RanksQuestion, by_worker=True),
    Route(
        "attribution",
        EFFECTS,
        lambda effects: effects.attribution,
        q.AttributionQuestion,
        by_worker=True,
    ),
    Route("cell", EFFECTS, lambda effects: effects.cell, q.CellQuestion, by_worker=True),
    Route("flow", EFFECTS, lambda effects: effects.flow, q.FlowQuestion, by_worker=True),
    Route(
        "generate", EFFECTS, lambda effects: effects.generate, q.GenerateQuestion, by_worker=True
    ),
    Route("compare", EFFECTS, lambda effects: effects.compare, q.CompareQuestion, by_worker=True),
    Route("act", EFFECTS, lambda effects: effects.act, q.ActQuestion, by_worker=True),
    Route(
        "edit",
        EFFECTS,
        lambda effects: effects.edit,
        q.ActQuestion,
        by_worker=True,
        file="edit.zip",
    ),
    Route("atlas", ATLAS, lambda atlas: atlas.overview),
    Route("atlas/{name}", ATLAS, lambda atlas: atlas.page),
    Route("find", ATLAS, lambda atlas: atlas.find, q.FindQuestion),
    Route("trace", FOLDERS, lambda gallery: gallery.trace, q.TraceQuestion, by_worker=True),
    Route("runs/{name}", FOLDERS, lambda gallery: gallery.run),
    Route("traces/{name}", FOLDERS, lambda gallery: gallery.saved_trace),
)


def find_route(path: str, routes: Sequence[Route[Any]] = ROUTES) -> RouteCall:
    """The route of a path, with its name: ``runs/NAME`` belongs to ``runs/{name}``.

    >>> find_route("runs/adding").name
    'adding'

    Raises:
        UsageError: no such route.
    """
    folder, _, name = path.partition("/")
    by_path = {route.path: route for route in routes}
    found = by_path.get(f"{folder}/{NAME}" if name else path)
    if found is None:
        known = ", ".join(each.replace(NAME, "NAME") for each in by_path)
        raise UsageError(f"there is no route {path[:80]!r}", hint=f"routes are {known}")
    return RouteCall(found, name=name)


def check_question(
    path: str, question: dict[str, Any], routes: Sequence[Route[Any]] = ROUTES
) -> RouteCall:
    """Check a question that did not come through the server.

    Raises:
        UsageError: no such route, or the question is invalid.
    """
    call = find_route(path, routes)
    if call.route.question is None:
        return call
    try:
        return call._replace(question=call.route.question.model_validate(question))
    except ValidationError as error:
        what, hint = describe_errors(error.errors())
        raise UsageError(f"{path}: {what}", hint=hint) from error


def describe_errors(errors: Any) -> tuple[str, str]:
    """Validation errors of a question: message and hint, one line each."""
    parts = [
        f"{'.'.join(str(part) for part in each['loc'] if part != 'body') or 'question'}: "
        f"{each['msg']}"
        for each in errors[:4]
    ]
    return "; ".join(parts)[:500], "viewer/README.md lists the fields of each question"
