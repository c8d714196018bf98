"""Answers about an atlas: the overview, the page of a head, and the heads that a query finds.

An atlas is loaded when it is first asked for, in a thread of its own: it needs no worker, because
nothing here runs the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, final

from cachetools import LRUCache
from pydantic import WithJsonSchema

from saccade.errors import SaccadeError, StoreError, UsageError
from saccade.viewer.schemas import FindQuestion

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from saccade.interp.atlas.head_page import AtlasPages
    from saccade.interp.heads.model import LanguageModel

PAGES = 64  # of heads that are kept; one takes up to 160 kB


def _json_schema(title: str, about: str, **keys: Any) -> WithJsonSchema:
    schema = {"type": "object", "title": title, "description": about, "properties": keys}
    return WithJsonSchema({**schema, "required": list(keys)})


OverviewJson: TypeAlias = Annotated[
    dict[str, Any],
    _json_schema(
        "AtlasOverview",
        "All heads with all metrics; README.md lists the keys.",
        model={"type": "string"},
        metrics={"type": "array", "items": {"type": "string"}},
        heads={"type": "array", "items": {"type": "object"}},
    ),
]
HeadPageJson: TypeAlias = Annotated[
    dict[str, Any],
    _json_schema(
        "AtlasHead",
        "Everything about one head; README.md lists the keys.",
        name={"type": "string"},
        metrics={"type": "object"},
        label={"type": "object"},
        does={"type": "object"},
        looks={"type": "object"},
    ),
]


class NoAtlasError(SaccadeError):
    """There is no atlas to show."""


@dataclass(frozen=True, kw_only=True)
class AtlasAnswer:
    """The overview of an atlas, or why there is none."""

    atlas: OverviewJson | None
    error: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class FoundHead:
    """A head that a query found, as `saccade.interp.atlas.finder.Found`."""

    name: str
    value: float
    what: str
    kl: float
    matters: float
    details: dict[str, float | None]


@final
class AtlasService:
    """Answers about one atlas: that of a folder, or the default one of a model."""

    def __init__(self, folder: Path | None, model: Callable[[], LanguageModel | None]) -> None:
        """`model` returns the open model, None without one, and raises while it is opened."""
        self._folder, self._model = folder, model
        self._lock = threading.Lock()
        self._pages: AtlasPages | None = None
        self._of_heads: LRUCache[str, HeadPageJson] = LRUCache(PAGES)

    def overview(self) -> AtlasAnswer:
        """All heads of the atlas with all their metrics and their labels."""
        with self._lock:
            try:
                return AtlasAnswer(atlas=self._open().overview(), error="", hint="")
            except (NoAtlasError, StoreError) as error:
                return AtlasAnswer(atlas=None, error=str(error), hint=error.hint)

    def page(self, name: str) -> HeadPageJson:
        """Everything about one head, by its name: layer.head."""
        site = head_of(name)
        with self._lock:
            pages = self._open()
            if name not in self._of_heads:
                page = pages.page(*site)
                self._add_prompts(page, pages)
                self._of_heads[name] = page
            return self._of_heads[name]

    def _add_prompts(self, page: dict[str, Any], pages: AtlasPages) -> None:
        """Add to each context the text to type for the same tokens; nothing without a model."""
        model = self._model()
        if model is None or model.tokenizer is None:
            return
        does = page["does"]
        for context in (
            *does["strongest"],
            *(each for stratum in does["strata"] for each in stratum["contexts"]),
        ):
            window = pages.atlas.windows[context["window"]]
            context["prompt"] = same_prompt(context, window[: context["position"] + 1], model)

    def find(self, question: FindQuestion) -> tuple[FoundHead, ...]:
        """The heads for which all given conditions hold, ranked by the first of them."""
        from saccade.interp.atlas.finder import Query, find_heads

        with self._lock:
            pages = self._open()
            # The page names sources without their folders.
            full = dict(zip(pages.sources, pages.atlas.provenance.sources, strict=True))
            query = Query(
                token=question.token,
                suppressed=question.suppressed,
                role=question.role,
                where=question.where,
                like=None if question.like is None else head_of(question.like),
                matters_in=full.get(question.matters_in or "", question.matters_in),
                not_in=full.get(question.not_in or "", question.not_in),
            )
            found = find_heads(pages.atlas, query)
        return tuple(
            FoundHead(
                name=each.name,
                value=each.value,
                what=each.what,
                kl=each.kl,
                matters=each.matters,
                details=dict(each.details),
            )
            for each in found
        )

    def _open(self) -> AtlasPages:
        if self._pages is None:
            self._pages = self._load()
        return self._pages

    def _load(self) -> AtlasPages:
        from saccade.interp.atlas.atlas import default_atlas_path, load_atlas
        from saccade.interp.atlas.head_page import AtlasPages

        model, path = self._model(), self._folder
        if path is None:
            if model is None:
                raise NoAtlasError(
                    "this viewer was started without a model and without an atlas",
                    hint="name one with `saccade view --atlas FOLDER`",
                )
            path = default_atlas_path(model.fingerprint)
            if not path.is_dir():
                raise NoAtlasError(
                    f"there is no atlas of {model.name} yet",
                    hint="`saccade atlas build` makes one",
                )
        atlas = load_atlas(path)
        if model is not None:
            try:
                atlas.check_model(model)
            except UsageError as error:
                raise NoAtlasError(str(error), hint=error.hint) from error
        return AtlasPages(atlas)


def same_prompt(
    context: dict[str, Any], ids: Int[Tensor, " pos"], model: LanguageModel
) -> str | None:
    """The text that a tokenizer turns into the tokens of a context.

    A context ends in the middle of a text, and perhaps of a word, so there may be none.
    """
    from saccade.interp.heads.model import text_ids

    assert model.tokenizer is not None, "asked for by a model that reads text"
    whole = context["before"] + "".join(context["tokens"])
    # Some tokenizers put a space before the first word.
    for text in (whole, whole.removeprefix(" ")):
        if text_ids(model.tokenizer, model.encoding, text)[0].tolist() == ids.tolist():
            return text
    return None


def head_of(name: str) -> tuple[int, int]:
    """Layer and head of a name.

    >>> head_of("12.3")
    (12, 3)

    Raises:
        UsageError: it is no such name.
    """
    layer, _, head = name.partition(".")
    if not (layer.isdecimal() and head.isdecimal() and name.isascii() and len(name) < 12):
        raise UsageError(
            f"expected a layer and a head, such as 12.3, got {name[:40]!r}", hint="write LAYER.HEAD"
        )
    return int(layer), int(head)
