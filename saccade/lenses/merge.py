"""One set of lenses from several that were fitted apart, on different text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from saccade.errors import LensError, UsageError
from saccade.lenses.collection import Lenses
from saccade.lenses.fit import from_statistics, score_quickly
from saccade.lenses.gather import Gathered

_BETWEEN = " + "  # the names of merged texts, and their fingerprints


def merge_lenses(parts: Sequence[Lenses]) -> Lenses:
    """The lenses that one fit over the texts of all parts gives.

    The sums add up, and the positions to choose on are sampled from the same held-out windows as in
    one fit (`saccade.lenses.batches.priorities`).

    Raises:
        LensError: the parts are of several models, hold no sums, or share a text.
    """
    if len(parts) < 2:
        raise UsageError(
            f"merging needs at least two sets of lenses, got {len(parts)}", hint="name two folders"
        )
    first = parts[0]
    for part in parts:
        _check(part, first)
    _refuse_one_text_twice(parts)
    gathered: Gathered | None = None
    for part in parts:
        assert part.statistics is not None and part.held_out is not None, "parts have been checked"
        if gathered is None:
            gathered = Gathered(part.statistics)
        else:
            gathered.statistics = gathered.statistics.merge(part.statistics)
        gathered.keep(part.held_out)
    assert gathered is not None, "there are at least two parts"
    made = replace(
        first.made,
        corpus=_BETWEEN.join(part.made.corpus for part in parts),
        corpus_fingerprint=_BETWEEN.join(part.made.corpus_fingerprint for part in parts),
        n_tokens=sum(part.made.n_tokens for part in parts),
    )
    return score_quickly(from_statistics(first.model, gathered, made))


def _check(part: Lenses, first: Lenses) -> None:
    if part.made.model_fingerprint != first.made.model_fingerprint:
        raise LensError(
            f"cannot merge lenses of {part.made.model} ({part.made.model_fingerprint}) with "
            f"those of {first.made.model} ({first.made.model_fingerprint})",
            hint="merge only lenses that were fitted for one model",
        )
    if part.statistics is None or part.held_out is None or part.made.method != "closed-form":
        raise LensError(
            f"lenses made by {part.made.method} on {part.made.corpus} hold no sums to merge",
            hint="merge lenses that were fitted with `--method closed-form`",
        )


def _refuse_one_text_twice(parts: Sequence[Lenses]) -> None:
    """A text that is counted twice would weigh twice, and be held out and fitted on at once."""
    seen: dict[str, str] = {}
    for part in parts:
        names = part.made.corpus.split(_BETWEEN)
        for number, text in enumerate(part.made.corpus_fingerprint.split(_BETWEEN)):
            name = names[number] if number < len(names) else part.made.corpus
            if text in seen:
                raise LensError(
                    f"cannot merge lenses of one text with itself: {seen[text]} and {name} hold "
                    f"the same tokens ({text})",
                    hint="name each shard once",
                )
            seen[text] = name
