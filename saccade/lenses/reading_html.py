"""A reading as a page: a map of all heads, and a card for the one that is chosen.

The page needs nothing from elsewhere and works without its script: choosing a head is a radio
button and a style rule; the script only lets the up and down keys move over the map.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from saccade.lenses.reading_style import COLOURS, SCRIPT, STYLE
from saccade.lenses.reading_table import WEAK, dotted

if TYPE_CHECKING:
    from saccade.lenses.head_reading import HeadReading, Source, Word
    from saccade.lenses.reading import Reading

RANKS = 12  # heads in the list beside the card
NOTE = (
    "A head says as many nats as its lens is away from the constant lens, the one that hears "
    "nothing and always gives the mean prediction. It adds the words that it makes likelier than "
    "the constant lens has them, and suppresses those it makes less likely. The arrow keys move "
    "over the map."
)


def page(reading: Reading) -> str:
    """One HTML file that works offline."""
    title = escape(f"{reading.model}: {reading.text[:60]}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>body{{margin:0;background:#fff}}"
        "@media (prefers-color-scheme:dark){body{background:#12161c}}</style></head>"
        f"<body>{fragment(reading, uid='reading')}</body></html>\n"
    )


def fragment(reading: Reading, *, uid: str | None = None) -> str:
    """The same as a part of another page, such as a notebook.

    Args:
        uid: keeps several readings on one page apart; drawn at random by default.
    """
    uid = uid or f"saccade-{secrets.token_hex(4)}"
    ranked = reading.ranked()
    choose = "".join(
        f'#{uid}:has([value="{key}"]:checked) [data-head="{key}"]{{display:block}}'
        for key in map(_key, reading.heads)
    )
    return "\n".join(
        [
            f'<div class="saccade" id="{uid}"><style>{COLOURS}{STYLE}{choose}</style>',
            _header(reading),
            _map(reading, ranked, uid),
            '<div class="below"><div class="cards">',
            *(_card(head) for head in reading.heads),
            f'<p class="soft">{NOTE}</p></div>{_ranks(ranked[:RANKS], uid)}</div>',
            f"<script>{SCRIPT.replace('UID', uid)}</script></div>",
        ]
    )


def show(text: str) -> str:
    """A token for HTML: escaped, its spaces as dots.

    >>> show(" <b>")
    '·&lt;b&gt;'
    """
    return escape(dotted(text))


def _key(head: HeadReading) -> str:
    return f"{head.layer}.{head.head or 0}"


def _header(reading: Reading) -> str:
    tokens = "".join(
        f'<mark title="read after this token, {at}">{show(token)}</mark>'
        if at == reading.position
        else f'<span class="t" title="token {at}">{show(token)}</span>'
        for at, token in enumerate(reading.tokens)
    )
    following = "".join(
        f"<li><b>{show(word.text)}</b> <i>{word.value:.1%}</i></li>"
        for word in reading.prediction[:6]
    )
    return (
        f'<header><p class="soft">{escape(reading.model)} reads, up to the marked token</p>'
        f'<p class="tokens">{tokens}</p>'
        f'<p class="soft">and predicts next</p><ol class="next">{following}</ol></header>'
    )


def _map(reading: Reading, ranked: Sequence[HeadReading], uid: str) -> str:
    """Layers from left to right, heads from top to bottom; darker says more."""
    layers = list(dict.fromkeys(head.layer for head in reading.heads))
    at = {(head.layer, head.head or 0): head for head in reading.heads}
    n_rows = 1 + max(head for _, head in at)
    most = ranked[0].says or 1.0
    cells = ['<span aria-hidden="true"></span>', *_columns(layers)]
    for row in range(n_rows):
        is_stream = reading.heads[0].head is None
        cells.append(f'<span class="row">{"" if is_stream else row}</span>')
        cells += [
            _cell(at[layer, row], uid, most=most, is_chosen=at[layer, row] is ranked[0])
            if (layer, row) in at
            else "<span></span>"
            for layer in layers
        ]
    what = "layer" if reading.heads[0].head is None else "head (rows) of each layer (columns)"
    return (
        f"<section><h3>How much each {what} says here</h3>"
        f'<div class="grid" style="--columns:{len(layers)}" role="radiogroup" '
        f'aria-label="heads, by layer and number">{"".join(cells)}</div>'
        '<div class="legend"><span>0</span><span class="ramp"></span>'
        f"<span>{most:.2f} nats (root scale)</span>"
        '<span><span class="hatch"></span> weak lens</span></div></section>'
    )


def _columns(layers: Sequence[int]) -> list[str]:
    """The numbers over the columns; on a narrow screen only every fifth has room."""
    return [f"<span{' class=fifth' if layer % 5 == 0 else ''}>{layer}</span>" for layer in layers]


def _cell(head: HeadReading, uid: str, *, most: float, is_chosen: bool) -> str:
    # The root spreads out the many heads that say little; the ends of the legend stay true.
    value = 100 * (max(head.says, 0.0) / most) ** 0.5
    words = " ".join(dotted(word.text) for word in head.adds[:3])
    title = escape(f"{_name(head)} says {head.says:.2f} nats: {words}")
    weak = " weak" if _is_weak(head) else ""
    return (
        f'<label class="cell{weak}" style="--v:{value:.0f}" title="{title}">'
        f'<input type="radio" name="{uid}" id="{uid}-{_key(head)}" value="{_key(head)}" '
        f'aria-label="{title}"{" checked" if is_chosen else ""}></label>'
    )


def _card(head: HeadReading) -> str:
    facts = [f"says <b>{head.says:.2f}</b> nats"]
    if head.contributes is not None:
        facts.append(f"adds <b>{head.contributes:+.2f}</b> to the predicted word's logit")
    facts.append(_quality(head))
    lists = [
        _words("adds (nats)", head.adds, "adds", "{:+.2f}"),
        _words("predicts", head.predicts, "", "{:.1%}"),
        _words("suppresses (nats)", head.suppresses, "drops", "{:+.2f}"),
        _words("unembedding (logit)", head.unembedded, "", "{:+.2f}"),
        _sources(head.attends),
    ]
    return (
        f'<article class="card{" weak" if _is_weak(head) else ""}" data-head="{_key(head)}">'
        f'<h2>{_name(head)}</h2><p class="facts">{"".join(f"<span>{f}</span>" for f in facts)}</p>'
        f'<div class="columns">{"".join(lists)}</div></article>'
    )


def _quality(head: HeadReading) -> str:
    explained = head.explained
    if explained is None:
        return '<span class="badge">lens not scored</span>'
    figures = ", ".join(f"{name} {value:.3g}" for name, value in head.quality.items())
    text = f"its lens removes <b>{explained:.0%}</b> of the constant lens's KL"
    if head.fidelity is not None:
        text += f"; its fidelity is <b>{head.fidelity:+.2f}</b>"
    badge = ' <span class="badge">weak lens</span>' if _is_weak(head) else ""
    return f'<span title="{escape(figures)}">{text}</span>{badge}'


def _words(title: str, words: Sequence[Word], kind: str, figure: str) -> str:
    return _bars(title, kind, [(show(w.text), w.value, figure.format(w.value)) for w in words])


def _sources(sources: Sequence[Source]) -> str:
    rows = [
        (f"{show(s.text)} <small>at {s.position}</small>", s.weight, f"{s.weight:.0%}")
        for s in sources
    ]
    return _bars("attends to", "", rows)


def _bars(title: str, kind: str, rows: Sequence[tuple[str, float, str]]) -> str:
    if not rows:
        return ""
    most = max(abs(value) for _, value, _ in rows) or 1.0
    items = "".join(
        f'<li style="--v:{100 * abs(value) / most:.0f}"><b>{shown}</b><i>{figure}</i></li>'
        for shown, value, figure in rows
    )
    return f'<section><h3>{title}</h3><ol class="words {kind}">{items}</ol></section>'


def _ranks(heads: Sequence[HeadReading], uid: str) -> str:
    items = "".join(
        f'<li><label for="{uid}-{_key(head)}"><span>{head.name}</span>'
        f"<b>{' '.join(show(word.text) for word in head.adds[:4])}</b>"
        f"<i>{head.says:.2f}</i></label></li>"
        for head in heads
    )
    return f'<nav class="ranks"><h3>They say most here</h3><ol>{items}</ol></nav>'


def _name(head: HeadReading) -> str:
    stream = f"residual stream after layer {head.layer}"
    return stream if head.head is None else f"layer {head.layer}, head {head.head}"


def _is_weak(head: HeadReading) -> bool:
    return head.explained is not None and head.explained < WEAK
