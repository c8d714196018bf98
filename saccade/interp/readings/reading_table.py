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

from saccade.interp.lenses.top_tokens import TokenValue, largest, plain

if TYPE_CHECKING:
    from saccade.interp.readings.reading import HeadReading, LensReading, Reading
    from saccade.interp.readings.text_run import TextRun


# A lens that removes a smaller share of the baseline lens's KL shows mostly noise. The lenses of a
# default fit remove about a tenth on average.
WEAK = 0.02
SHOWN = 7  # tokens of a ranking in one line of 80 columns


def table_text(reading: Reading, heads: Sequence[HeadReading], *, width: int = 80) -> str:
    """The prediction and these heads as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(reading_table(reading, heads))
    assert isinstance(console.file, io.StringIO), "the file passed above"
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def reading_table(reading: Reading, heads: Sequence[HeadReading]) -> Group:
    """The same for a rich console, which fits it to its width and colours it only on a terminal."""
    return Group(
        _title(reading),
        _prediction(reading),
        Text(),
        _table(reading, heads),
        Text(),
        _legend(reading, heads),
    )


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


def grade(lens: LensReading) -> str:
    """The quality of a lens, as text.

    A lens that is hardly better than the baseline is marked as weak.
    """
    explained = lens.explained
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


def _legend(reading: Reading, heads: Sequence[HeadReading]) -> Text:
    """One line for each kind of line above it."""
    lines = []
    if any(head.effect is not None for head in heads):
        score = "" if reading.target is None else _score(reading)
        replaced = {"mean": "its mean", "zero": "zero", "resample": "its value at another token"}
        by = replaced.get(reading.replaced_by or "", "its value in another prompt")
        lines += [
            f"effect       KL of the prediction with the head from that with {by}, in nats",
            f"{score:<12} fall of that logit without the head; direct: the part of it that",
            "             reaches the logits without later layers",
            "promotes     tokens that are likelier with the head; suppresses: less likely",
        ]
    if any(head.attends for head in heads):
        lines.append("attends to   where the head looks, with the share of its attention")
    if any(head.lens is not None for head in heads):
        lines += [
            "lens         KL of its lens from the baseline lens, in nats; quality: share of",
            "             the baseline's KL that it removes on held-out text; agrees: its",
            "             correlation with the effect here",
            "knows        tokens that the lens makes likelier than the baseline",
        ]
    return Text("\n".join([*lines, "·            a space"]), style="dim")


def _score(reading: Reading) -> str:
    """The name of the score that effects on a token are about."""
    assert reading.target is not None, "effects are about a token"
    against = "" if reading.against is None else f" - {dotted(reading.against.text)}"
    return dotted(reading.target.text) + against


def _table(reading: Reading, heads: Sequence[HeadReading]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for head in heads:
        name = head.name
        for label, shown in _lines(reading, head):
            if shown:
                table.add_row(name, label, shown)
                name = ""
    return table


def _lines(reading: Reading, head: HeadReading) -> list[tuple[str, Text]]:
    lines: list[tuple[str, Text]] = []
    if (effect := head.effect) is not None:
        direct = "" if effect.direct is None else f"  direct {effect.direct:+.2f}"
        shown = (f"{effect.kl:.3f}", "bold"), f"  {_score(reading)} {effect.on_token:+.2f}", direct
        lines += [
            ("effect", Text.assemble(*shown)),
            ("promotes", _tokens(effect.promotes[:SHOWN], style="cyan")),
            ("suppresses", _tokens(effect.suppresses[:SHOWN], style="magenta")),
        ]
    # A source with at most 5% of the weight is not informative.
    sources = [(source.text, source.weight) for source in head.attends if source.weight > 0.05]
    lines.append(("attends to", _with_percent(sources)))
    if (lens := head.lens) is not None:
        agreement = None if head.effect is None else head.effect.lens_agreement
        agrees = "" if agreement is None else f"  agrees {agreement:+.2f}"
        truth = "" if lens.fidelity is None else f"  fidelity {lens.fidelity:+.2f}"
        shown = (f"{lens.kl_from_baseline:.2f}", ""), f"  quality {grade(lens)}", agrees, truth
        is_weak = lens.explained is not None and lens.explained < WEAK
        lines += [
            ("lens", Text.assemble(*shown)),
            ("knows", _tokens(lens.adds[:SHOWN], style="dim" if is_weak else "green")),
        ]
        if head.effect is None:  # read for its lens alone: all that it tells
            lines += [
                ("predicts", _with_percent([(t.text, t.value) for t in lens.predicts[:6]])),
                ("suppresses", _tokens(lens.suppresses[:SHOWN], style="magenta")),
            ]
    lines.append(("unembedding", _tokens(head.unembedded[:SHOWN], style="dim")))
    return lines


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
