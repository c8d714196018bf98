"""Readings and traces in a notebook: the same page, drawn inline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from saccade import __version__
from saccade.errors import UsageError
from saccade.lenses.head_card import UNEMBEDDING
from saccade.lenses.head_reading import HeadReading, plain
from saccade.lenses.reading import Reading
from saccade.lenses.reading_table import WEAK
from saccade.viewer.desk import written
from saccade.viewer.offline import Kept, offline_page

if TYPE_CHECKING:
    from saccade.trace import Trace

HEIGHT = 720  # pixels in a notebook; the rest scrolls
LENS = "lens"


@runtime_checkable
class AnyTrace(Protocol):
    """A trace of any kind."""

    @property
    def title(self) -> str:
        """What it is of."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        ...


@dataclass(frozen=True)
class Shown:
    """A page that shows itself in a notebook, and can be saved."""

    html: str
    height: int = HEIGHT

    def _repr_html_(self) -> str:
        # In a frame of its own: its styles and scripts cannot meet the notebook's.
        return (
            f'<iframe srcdoc="{escape(self.html)}" style="width:100%;border:0" '
            f'height="{self.height}" sandbox="allow-scripts allow-downloads allow-popups" '
            'title="saccade"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write it as one file that works offline."""
        from saccade.store import atomic_file

        with atomic_file(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8")


def show(what: Reading | Trace | Sequence[Trace], *, height: int = HEIGHT) -> Shown:
    """Draw a reading, a trace or several as the viewer does.

    >>> import torch
    >>> from saccade.trace import Trace
    >>> trace = Trace(kind="attention", steps=("a",), memory=("<b>",), weights=torch.ones(1, 1))
    >>> "srcdoc=" in show(trace)._repr_html_()
    True
    """
    if isinstance(what, Reading):
        state, kept = _of_reading(what)
        return Shown(offline_page(state, kept, title=what.text[:80]), height)
    several = list(what) if isinstance(what, Sequence) else [what]
    if not several or not all(isinstance(each, AnyTrace) for each in several):
        raise UsageError(
            f"cannot show {type(what).__name__}", hint="give a reading, a trace or several traces"
        )
    state, kept = _of_traces(several)
    return Shown(offline_page(state, kept, title=several[0].title[:80]), height)


def _of_reading(reading: Reading) -> tuple[dict[str, Any], list[Kept]]:
    state = {"screen": "prompt", "text": reading.text}
    question: dict[str, Any] = {"text": reading.text}
    if reading.position != len(reading.tokens) - 1:
        state["at"] = str(reading.position)
        question["position"] = reading.position
    rows: dict[int, int] = {}
    for each in reading.heads:
        rows[each.layer] = rows.get(each.layer, 0) + 1
    model = {
        "name": reading.model,
        "layers": [{"layer": layer, "n_heads": n} for layer, n in rows.items()],
        "n_heads": len(reading.heads),
        "d_vocab": 0,
        "max_tokens": len(reading.tokens),
    }
    kept = [
        Kept("status", {}, written(_status(model))),
        Kept("reading", question, written({**reading.to_dict(), "lens": LENS})),
    ]
    for each in reading.heads:
        if each.head is not None:
            asked = {**question, "layer": each.layer, "head": each.head}
            kept.append(Kept("head", asked, written(_card(reading, each))))
    return state, kept


def _card(reading: Reading, head: HeadReading) -> dict[str, Any]:
    """The head card that a reading alone can fill: one lens, and no whole row of attention."""
    explained = head.explained
    common = {"method": "", "explained": None, "fidelity": None, "is_weak": False, "predicts": []}
    lens = {
        **common,
        "name": LENS,
        "kind": "",
        "says": plain(head.says),
        "quality": plain(head.quality),
        "explained": plain(explained),
        "fidelity": plain(head.fidelity),
        "is_weak": explained is not None and explained < WEAK,
        **{name: plain(tuple(getattr(head, name))) for name in ("predicts", "adds", "suppresses")},
    }
    raw = {
        **common,
        "name": UNEMBEDDING,
        "kind": "logit-head",
        "says": None,
        "quality": {},
        "adds": plain(tuple(head.unembedded)),
        "suppresses": [],
    }
    return {
        "layer": head.layer,
        "head": head.head,
        "position": reading.position,
        "tokens": reading.tokens,
        "word": plain(reading.prediction[0]),
        "contributes": plain(head.contributes),
        "lenses": [raw, lens] if head.unembedded else [lens],
        "attention": None,
        "entropy": None,
    }


def _of_traces(traces: Sequence[AnyTrace]) -> tuple[dict[str, Any], list[Kept]]:
    names = [f"trace-{number}" for number in range(1, len(traces) + 1)]
    dicts = [trace.to_dict() for trace in traces]
    listed = [
        {"name": name, "kind": each["kind"], "title": each["title"], "n_steps": len(each["steps"])}
        for name, each in zip(names, dicts, strict=True)
    ]
    kept = [
        Kept("status", {}, written(_status(None))),
        Kept("runs", {}, b"[]"),
        Kept("traces", {}, written(listed)),
    ]
    kept += [
        Kept(f"traces/{name}", {}, written(each)) for name, each in zip(names, dicts, strict=True)
    ]
    return {"screen": "traces", "trace": names[0]}, kept


def _status(model: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "version": __version__,
        "state": "none" if model is None else "ready",
        "model": model,
        "lenses": [] if model is None else [LENS],
        "residual_lenses": [],
        "opening": None,
        "job": None,
        "waiting": 0,
        "problem": None,
        "word_lists": [],
        "roles": [],
        "examples": [],
    }
