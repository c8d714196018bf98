"""A label for each head, made from its own contexts by rules.

A context is a head at a sampled position. `FEATURES` are facts about contexts that are true or
false: what the head promotes or suppresses there, where it looks, which token it stands at. For
each head, every fact has a rate among its contexts, weighted by effect (up to a limit: see
`saccade.interp.atlas.token_shares`), and an average rate over all heads. A label names the facts
whose rates tell the head best from the others, with both rates, and how often the head matters.
Nothing is guessed: every word of a label is one of these facts.

The same facts judge the label: contexts of other text score higher the better they fit it (the sum
of log ratios of the two rates, as in naive Bayes). A label is good if the head's own contexts
there score above those of other heads (`label_auroc`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.atlas.contexts import FEATURES, OWN, Contexts, Feature, Own
from saccade.interp.atlas.token_shares import TokenShares, limited_effect

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas

NAMED, SHORT = 8, 4
"""Facts of a label at most, and of its short form."""
LEAST_RATIO = 1.5
"""A fact is named if its rate is at least so many times the average."""
LEAST_RATE = 0.05
LEAST_TOLD = 0.01
"""Nats: the KL of its rate from the average one."""
OWN_TOKENS = 40
STRONG = 0.1
"""A context is strong if its effect is among the largest tenth of the head's."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact that a label names."""

    phrase: str
    rate: float
    """Its share of the head's contexts, weighted by effect."""
    average: float
    """The same over all heads."""
    feature: int
    """Its number in `FEATURES`, then in `OWN`."""
    tokens: tuple[int, ...] = ()
    """Of a fact about the head's own list."""

    @property
    def text(self) -> str:
        """With both rates."""
        return f"{self.phrase} ({self.rate:.0%}; average {self.average:.0%})"


@dataclass(frozen=True, kw_only=True)
class Label:
    """A head in words."""

    matters: float
    """The share of positions where it matters."""
    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        """One line."""
        often = f"matters in {self.matters:.1%} of positions" if self.matters else "never matters"
        return "; ".join([*(fact.text for fact in self.facts), often])

    @property
    def short(self) -> str:
        """The first facts, without rates."""
        return "; ".join(fact.phrase for fact in self.facts[:SHORT]) or "nothing of its own"


def make_labels(atlas: Atlas, *, rows: Int[Tensor, " n"] | None = None) -> list[Label]:
    """A label for every head, from some records, by default all.

    The lists of tokens of one half of the windows are rated on the other, because a list always
    fits the contexts it was made of.
    """
    rows = torch.arange(len(atlas.records)) if rows is None else rows
    even = atlas.records.window[rows] % 2 == 0
    if not even.any() or even.all():
        even = torch.arange(len(rows)) % 2 == 0
    parts = [Contexts(atlas, rows[even]), Contexts(atlas, rows[~even])]
    weight = [_weights(part) for part in parts]
    rates = [
        [(_holds(part, f) * w).sum(0) for f in FEATURES]
        for part, w in zip(parts, weight, strict=True)
    ]
    fixed = (torch.stack(rates[0]) + torch.stack(rates[1])) / 2  # [feature, head]
    whole = Contexts(atlas, rows)
    own, lists = [], []
    for kind in OWN:
        shares = [_shares_of(kind, part, w) for part, w in zip(parts, weight, strict=True)]
        # [2, head]: own rate and average
        own.append((_rate_on(shares[0], shares[1]) + _rate_on(shares[1], shares[0])) / 2)
        lists.append(_shares_of(kind, whole, _weights(whole)))
    rate = torch.stack([*fixed, *(each[0] for each in own)])  # [feature, head]
    common = fixed.mean(1, keepdim=True).expand_as(fixed)
    average = torch.stack([*common, *(each[1] for each in own)])
    return _named(atlas, rate, average, lists)


def _weights(contexts: Contexts) -> Float[Tensor, "n head"]:
    effect = limited_effect(contexts.kl)
    return effect / effect.sum(0).clamp_min(1e-12)


def _holds(contexts: Contexts, feature: Feature) -> Float[Tensor, "n head"]:
    return feature.holds(contexts).expand(contexts.shape).float()


def _shares_of(kind: Own, contexts: Contexts, weight: Tensor) -> TokenShares:
    ids = kind.tokens(contexts)
    distinct, number = ids.unique(return_inverse=True)
    share = torch.zeros(ids.shape[1], len(distinct)).scatter_add_(1, number.T, weight.T)
    n = torch.zeros_like(share, dtype=torch.int32).scatter_add_(
        1, number.T, torch.ones_like(number.T, dtype=torch.int32)
    )
    return TokenShares(distinct, share, n)


def _rate_on(lists: TokenShares, other: TokenShares) -> Float[Tensor, "2 head"]:
    """How often the tokens of each head's list occur in other contexts: its own, and all heads'."""
    ids = lists.ids[lists.special(OWN_TOKENS)]  # [head, token]
    at = torch.searchsorted(other.ids, ids).clamp_max(len(other.ids) - 1)
    found = other.ids[at] == ids
    own = (other.share.gather(1, at) * found).sum(1)
    return torch.stack([own, (other.average[at] * found).sum(1)])


def _named(
    atlas: Atlas, rate: Tensor, average: Tensor, lists: Sequence[TokenShares]
) -> list[Label]:
    floor = 1 / (2 * len(atlas.records))
    p, q = rate.clamp(floor, 1 - floor), average.clamp(floor, 1 - floor)
    told = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()  # KL of the two rates
    # What a head does, not what it does not do.
    told = told.masked_fill((p / q < LEAST_RATIO) | (p < LEAST_RATE), 0)
    matters = [head.matters for head in atlas.heads]
    special = [each.ids[each.special(OWN_TOKENS)] for each in lists]
    labels = []
    for head in range(rate.shape[1]):
        facts = []
        for number in told[:, head].argsort(descending=True).tolist():
            if len(facts) == NAMED or told[number, head] < LEAST_TOLD:
                break
            own = number - len(FEATURES)
            ids = special[own][head].tolist() if own >= 0 else []
            phrase = OWN[own].phrase if own >= 0 else FEATURES[number].phrase
            facts.append(
                Fact(
                    phrase=phrase.format(", ".join(map(repr, atlas.show(ids[:4])))),
                    rate=float(rate[number, head]),
                    average=float(average[number, head]),
                    feature=number,
                    tokens=tuple(ids),
                )
            )
        labels.append(Label(matters=matters[head], facts=tuple(facts)))
    return labels


def label_scores(label: Label, contexts: Contexts) -> Float[Tensor, "n head"]:
    """How well the contexts of all heads fit a label: the sum of the log ratios of its rates."""
    total = torch.zeros(contexts.shape)
    for fact in label.facts:
        own = fact.feature - len(FEATURES)
        if own >= 0:
            holds = torch.isin(OWN[own].tokens(contexts), torch.tensor(fact.tokens))
        else:
            holds = FEATURES[fact.feature].holds(contexts).expand(contexts.shape)
        p, q = (min(max(each, 1e-3), 1 - 1e-3) for each in (fact.rate, fact.average))
        total += torch.where(
            holds, torch.tensor(p / q).log(), torch.tensor((1 - p) / (1 - q)).log()
        )
    return total


def label_auroc(
    atlas: Atlas,
    heads: Sequence[int],
    *,
    train: Int[Tensor, " n"],
    test: Int[Tensor, " m"],
    labels_of: Sequence[int] | None = None,
) -> list[float]:
    """How often a strong held-out context of a head fits its label better than one of another head.

    Labels are made of the records ``train`` and judged on the records ``test``. The contexts of
    other heads are their strong ones, as many of each.

    Args:
        labels_of: the heads whose labels are judged, one for each of ``heads``, as a control.
    """
    labels = make_labels(atlas, rows=train)
    contexts = Contexts(atlas, test)
    n = max(1, round(STRONG * len(test)))
    strong = torch.zeros(contexts.shape, dtype=torch.bool)
    strong.scatter_(0, contexts.kl.topk(n, dim=0).indices, value=True)
    found = []
    for head, labelled in zip(heads, labels_of or heads, strict=True):
        scores = label_scores(labels[labelled], contexts)
        own = scores[:, head][strong[:, head]]
        mask = strong.clone()
        mask[:, head] = False
        found.append(_auroc(own, scores[mask]))
    return found


def _auroc(positive: Tensor, negative: Tensor) -> float:
    """The chance that a positive is above a negative, ties counted half."""
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive)
    at_most = torch.searchsorted(ordered, positive, right=True)
    return float((below + at_most).double().mean() / (2 * len(negative)))
