"""One set of lenses from several that were fitted apart, on different text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from saccade.errors import LensError, UsageError
from saccade.lenses.collection import Lenses
from saccade.lenses.fit import from_statistics, score_quickly
from saccade.lenses.gather import Gathered


def merge_lenses(parts: Sequence[Lenses]) -> Lenses:
    """The lenses that one fit over the text of all parts would have given.

    The sums add up; the mixture of ingredients is chosen on the held-out positions of all parts.
    """
    if len(parts) < 2:
        raise UsageError(
            f"merging needs at least two sets of lenses, got {len(parts)}", hint="name two folders"
        )
    first = parts[0]
    gathered = None
    for part in parts:
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
        if gathered is None:
            gathered = Gathered(part.statistics, [part.held_out])
        else:
            gathered.statistics = gathered.statistics.merge(part.statistics)
            gathered.held_out.append(part.held_out)
    assert gathered is not None, "there are at least two parts"
    made = replace(
        first.made,
        corpus=" + ".join(part.made.corpus for part in parts),
        corpus_fingerprint=" + ".join(part.made.corpus_fingerprint for part in parts),
        n_tokens=sum(part.made.n_tokens for part in parts),
    )
    return score_quickly(from_statistics(first.model, gathered, made))
