"""A reading as a page: a map of all heads, and a card for the one that is chosen.

The page needs nothing from elsewhere and works without its script: choosing a head is a radio
button and a style rule; the script only lets the up and down keys move over the map.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from saccade.interp.lenses.reading_table import WEAK, dotted

if TYPE_CHECKING:
    from saccade.interp.lenses.reading import HeadReading, Reading, Source, Word


# How the page of a reading looks, and how the arrow keys move over its map.

LIGHT = """--ink:#1c2430;--soft:#5b6675;--line:#dfe4ea;--paper:#fff;--panel:#f6f8fa;--lo:#eaf0f7;
--hi:#08336e;--bar:#bcd3ec;--add:#1a66b3;--drop:#a14a00;--here:#ffe08a;--here-ink:#3b2d00"""
DARK = """--ink:#e6ebf2;--soft:#98a4b3;--line:#2c3542;--paper:#12161c;--panel:#1a2029;--lo:#1f2835;
--hi:#ffd75e;--bar:#2f4a68;--add:#7fb8f0;--drop:#f0a35e;--here:#ffd75e;--here-ink:#241c00"""

# One hue from pale to dark (dark mode: from dim to bright), so that lightness alone tells the value
# and no kind of colour blindness hides it.
COLOURS = f"""
.saccade{{{LIGHT};color-scheme:light;color:var(--ink);background:var(--paper);
font:15px/1.45 system-ui,sans-serif;padding:20px;max-width:1180px;margin:0 auto}}
@media (prefers-color-scheme:dark){{.saccade{{{DARK};color-scheme:dark}}}}
[data-jp-theme-light=true] .saccade,.vscode-light .saccade{{{LIGHT};color-scheme:light}}
[data-jp-theme-light=false] .saccade,.vscode-dark .saccade{{{DARK};color-scheme:dark}}
"""

STYLE = """
.saccade *{box-sizing:border-box}
.saccade h2{font-size:19px;margin:0}
.saccade h3{font-size:12px;font-weight:600;margin:0 0 6px;color:var(--soft)}
.saccade p{margin:0}
.saccade .soft{color:var(--soft);font-size:13px}
.saccade i{font-style:normal;color:var(--soft);font-variant-numeric:tabular-nums;flex:none}
.saccade .tokens,.saccade li b{font-family:ui-monospace,Menlo,Consolas,monospace}
.saccade li b{font-weight:400;white-space:pre;overflow:hidden;text-overflow:ellipsis;min-width:0}
.saccade li small{color:var(--soft)}
.saccade .tokens{font-size:16px;line-height:1.9;margin:6px 0 12px;overflow-wrap:anywhere}
.saccade .tokens span.t{padding:2px 1px;border-bottom:1px solid var(--line)}
.saccade .tokens mark{padding:2px 4px;border-radius:4px;background:var(--here);
color:var(--here-ink)}
.saccade .next{display:flex;flex-wrap:wrap;gap:6px 16px;padding:0;margin:4px 0 20px;list-style:none}
.saccade .next li:first-child b{font-weight:700}
.saccade .grid{display:grid;gap:2px;overflow-x:auto;padding:3px;
grid-template-columns:2.2em repeat(var(--columns),minmax(10px,1fr))}
.saccade .grid span{font-size:11px;color:var(--soft);text-align:center;align-self:center;
font-variant-numeric:tabular-nums;overflow:hidden}
.saccade .cell{position:relative;height:26px;border-radius:3px;cursor:pointer;
background:color-mix(in oklab,var(--hi) calc(var(--v)*1%),var(--lo))}
.saccade .cell.weak{background-image:repeating-linear-gradient(135deg,transparent 0 4px,
var(--paper) 4px 6px)}
.saccade .cell input{position:absolute;inset:0;width:100%;height:100%;margin:0;opacity:0;
cursor:pointer}
.saccade .cell:hover{outline:2px solid var(--soft)}
.saccade .cell:has(:checked){outline:3px solid var(--drop);outline-offset:-1px;z-index:1}
.saccade .cell:has(:focus-visible){outline:3px solid var(--ink);outline-offset:1px;z-index:2}
.saccade .legend{display:flex;flex-wrap:wrap;align-items:center;gap:4px 10px;margin:8px 0 18px;
font-size:12px;color:var(--soft)}
.saccade .ramp{width:150px;height:10px;border-radius:3px;
background:linear-gradient(in oklab to right,var(--lo),var(--hi))}
.saccade .hatch{display:inline-block;width:20px;height:12px;border-radius:3px;vertical-align:-1px;
background:repeating-linear-gradient(135deg,var(--bar) 0 4px,var(--paper) 4px 6px)}
.saccade .below{display:grid;grid-template-columns:minmax(0,1fr) 300px;gap:24px}
.saccade .card{display:none;background:var(--panel);border:1px solid var(--line);
border-radius:10px;padding:18px}
.saccade .facts{display:flex;flex-wrap:wrap;gap:4px 22px;margin:6px 0 16px;font-size:14px}
.saccade .facts b{font-variant-numeric:tabular-nums}
.saccade .badge{border:1px solid var(--drop);color:var(--drop);border-radius:99px;padding:0 9px;
font-size:12px;font-weight:600}
.saccade .columns{display:grid;gap:18px 24px;
grid-template-columns:repeat(auto-fit,minmax(136px,1fr))}
.saccade .weak .columns{opacity:.62}
.saccade ol{list-style:none;margin:0;padding:0}
.saccade .words li{position:relative;display:flex;justify-content:space-between;gap:8px;
padding:2px 6px;margin-bottom:2px;font-size:13px;overflow:hidden;border-radius:3px}
.saccade .words li::before{content:"";position:absolute;inset:0 auto 0 0;width:calc(var(--v)*1%);
background:var(--bar);opacity:.75}
.saccade .words li>*{position:relative}
.saccade .adds b{color:var(--add);font-weight:600}
.saccade .drops b{color:var(--drop)}
.saccade .cards,.saccade .ranks{min-width:0}
.saccade .cards p.soft{margin:10px 2px}
.saccade .ranks label{display:flex;gap:10px;align-items:baseline;padding:5px 8px;cursor:pointer;
border-radius:6px;font-size:13px}
.saccade .ranks label:hover{background:var(--panel)}
.saccade .ranks span{min-width:2.6em;font-weight:700;font-variant-numeric:tabular-nums}
.saccade .ranks b{flex:1}
@media (max-width:820px){.saccade{padding:14px}.saccade .below{grid-template-columns:minmax(0,1fr)}
.saccade .cell{height:24px}.saccade .grid{gap:1px;grid-template-columns:1.6em
repeat(var(--columns),minmax(8px,1fr))}.saccade .card{padding:14px}
.saccade .grid span{overflow:visible;white-space:nowrap;min-width:0;width:0;justify-self:center}
.saccade .grid span:not(.fifth,.row){font-size:0}
.saccade .columns{grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:16px 14px}}
"""

# Radio buttons move along the row by themselves; up and down should stay in the column.
SCRIPT = """
document.getElementById("UID").addEventListener("keydown", function (event) {
  var step = {ArrowUp: -1, ArrowDown: 1}[event.key];
  if (!step || event.target.type !== "radio") return;
  var at = event.target.value.split("."), next = at[0] + "." + (+at[1] + step);
  var found = document.getElementById("UID-" + next);
  event.preventDefault();
  if (found) { found.checked = true; found.focus(); }
});
"""


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
