"""A reading as a table for the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from saccade.interp.readings.reading import TokenValue, plain
from saccade.interp.lenses.top_tokens import largest

if TYPE_CHECKING:
    from saccade.interp.readings.reading import HeadReading, Reading
    from saccade.interp.readings.text_run import TextRun


# A lens that removes a smaller share of the baseline lens's KL shows mostly noise. The lenses of a
# default fit remove about a tenth on average.
WEAK = 0.02


def table_text(reading: Reading, heads: Sequence[HeadReading], *, width: int = 100) -> str:
    """The prediction and these heads as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(reading_table(reading, heads))
    assert isinstance(console.file, io.StringIO), "the file passed above"
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def reading_table(reading: Reading, heads: Sequence[HeadReading]) -> Group:
    """The same for a rich console, which fits it to its width and colours it only on a terminal."""
    legend = _legend(reading, has_fidelity=any(head.fidelity is not None for head in heads))
    return Group(_title(reading), _prediction(reading), Text(), _table(heads), Text(), legend)


def printable(text: str) -> str:
    r"""A token with newlines and other unprintable characters escaped.

    >>> print(printable("a\n"))
    a\n
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def dotted(text: str) -> str:
    """A token with visible spaces, at which a table does not break it.

    >>> dotted(" Paris")
    '·Paris'
    """
    return printable(text).replace(" ", "·")


def grade(head: HeadReading) -> str:
    """The quality of the lens, as text.

    A lens that is hardly better than the baseline is marked as weak.
    """
    explained = head.explained
    if explained is None:
        return "not scored"
    return f"{100 * explained:.0f}% weak" if explained < WEAK else f"{100 * explained:.0f}%"


def _title(reading: Reading) -> Text:
    at = reading.position
    return Text.assemble(
        (f"{reading.model} after token {at}, ", "dim"),
        (dotted(reading.tokens[at]), "bold"),
        (", of ", "dim"),
        f'"{printable(reading.text)}"',
    )


def _prediction(reading: Reading) -> Text:
    parts: list[str | tuple[str, str]] = [("predicts ", "dim")]
    for token in reading.prediction[:5]:
        parts += [(dotted(token.text), "bold green"), f" {100 * token.value:.0f}%  "]
    return Text.assemble(*parts)


def _legend(reading: Reading, *, has_fidelity: bool) -> Text:
    token = dotted(reading.prediction[0].text)
    truth = (
        "fidelity: correlation of the lens with the effect of ablating the head; "
        if has_fidelity
        else ""
    )
    return Text(
        "lens: KL from the baseline lens, in nats; adds: tokens it makes likelier than the "
        f"baseline does; direct: what the head adds to the logit of {token}; quality: share of "
        f"the baseline's KL that it removes on held-out text; {truth}· is a space",
        style="dim",
    )


def _table(heads: Sequence[HeadReading]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for head in heads:
        table.add_row(head.name, "lens", _figures(head))
        for name, shown in _lines(head):
            if shown:
                table.add_row("", name, shown)
    return table


def _figures(head: HeadReading) -> Text:
    logit = "" if head.direct is None else f"  direct {head.direct:+.2f}"
    truth = "" if head.fidelity is None else f"  fidelity {head.fidelity:+.2f}"
    return Text.assemble(
        (f"{head.kl_from_baseline:.2f}", "bold"), logit, f"  quality {grade(head)}", truth
    )


def _lines(head: HeadReading) -> list[tuple[str, Text]]:
    is_weak = head.explained is not None and head.explained < WEAK
    return [
        ("adds", _tokens(head.adds, style="dim" if is_weak else "cyan")),
        ("predicts", _with_percent([(token.text, token.value) for token in head.predicts[:6]])),
        ("suppresses", _tokens(head.suppresses[:6], style="magenta")),
        ("unembedding", _tokens(head.unembedded, style="dim")),
        # A source with at most 5% of the weight is not informative.
        (
            "attends to",
            _with_percent([(s.text, s.weight) for s in head.attends if s.weight > 0.05]),
        ),
    ]


def _tokens(tokens: Sequence[TokenValue], *, style: str = "") -> Text:
    return Text("  ".join(dotted(token.text) for token in tokens), style=style)


def _with_percent(shares: Sequence[tuple[str, float]]) -> Text:
    parts: list[tuple[str, str]] = []
    for text, share in shares:
        percent = f"{share:.0%}" if share >= 0.005 else "<1%"
        parts += [(dotted(text), ""), (f" {percent}  ", "dim")]
    return Text.assemble(*parts)


# The model's own prediction at every position of a text.

CHUNK = 64  # positions whose logits are in memory at once: some megabytes


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model's own prediction at one position."""

    position: int
    top: tuple[TokenValue, ...]
    """The likeliest next tokens, with their probabilities."""
    surprise: float | None
    """Minus the log-probability that the position before gave to this token, in nats; None for the
    first."""
    entropy: float


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The model's own prediction at every position of a text."""

    text: str
    tokens: list[str]
    positions: tuple[Prediction, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


@torch.inference_mode()
def predictions(run: TextRun, *, top: int = 5) -> Predictions:
    """Likeliest next tokens, surprisal of each token, and entropy at each position."""
    model, ids = run.model, run.ids[0]
    found: list[Prediction] = []
    surprise: list[float | None] = [None]
    for start in range(0, len(ids), CHUNK):
        states = run.captured.final[0, start : start + CHUNK]
        log_p = model.unembedding.logits(states).float().log_softmax(-1)  # [pos, d_vocab]
        best = largest(log_p, min(top, model.d_vocab))
        entropy = -(log_p.exp() * log_p).sum(-1)
        came = ids[start + 1 : start + 1 + len(states)].to(log_p.device)
        surprise += (-log_p[: len(came)].gather(1, came[:, None])[:, 0]).tolist()
        for row, (tokens, values) in enumerate(
            zip(best.ids.tolist(), best.values.exp().tolist(), strict=True)
        ):
            found.append(
                Prediction(
                    position=start + row,
                    top=tuple(map(TokenValue, tokens, model.tokens(tokens), values)),
                    surprise=surprise[start + row],
                    entropy=float(entropy[row]),
                )
            )
    return Predictions(text=run.text, tokens=run.tokens, positions=tuple(found))
