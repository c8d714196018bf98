"""Find heads in an atlas: by token, role, range of a metric, similarity to a head, or by text."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError, suggest
from saccade.interp.atlas.token_shares import Kind, effect_parts

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
LEAST_KL = 1e-6  # nats; below it the logarithm of an effect is rounding
CHANCE = 0.05  # of a head that does not differ between two texts


@dataclass(frozen=True, kw_only=True)
class Query:
    """What heads are asked for; every given condition must hold."""

    token: str | None = None
    """They promote this token at some position; ranked by its share of their effect."""
    suppressed: str | None = None
    """They suppress this token."""
    role: str | None = None
    """Ranked by their score for this role."""
    where: Sequence[str] = ()
    """Ranges of metrics, such as ``"kl>0.01"`` or ``"induction>=0.2"``."""
    like: tuple[int, int] | None = None
    """Ranked by how similar their effects are to those of this head at the same positions."""
    matters_in: str | None = None
    """They have larger effects in this source of the atlas's text than in the others."""
    not_in: str | None = None
    """The source that ``matters_in`` is compared with, instead of all others."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A head that a query found."""

    layer: int
    head: int
    value: float
    """What the heads are ranked by."""
    what: str
    """The name of this value."""
    kl: float
    matters: float
    details: dict[str, float]
    """What else the query asked about, by name."""

    @property
    def name(self) -> str:
        """``layer.head``."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True)
class _Ranking:
    """A value for each head, and which of them satisfy the condition."""

    what: str
    value: Float[Tensor, " head"]
    holds: Tensor
    details: dict[str, Tensor]


def find_heads(atlas: Atlas, query: Query) -> list[Found]:
    """The heads for which all conditions of a query hold, ranked by the first of them.

    Without a condition all heads, by their mean effect.
    """
    rankings = list(_rankings(atlas, query))
    kl = torch.tensor([head.kl for head in atlas.heads])
    if not rankings:
        rankings = [_Ranking("kl", kl, torch.ones_like(kl, dtype=torch.bool), {})]
    holds = torch.stack([each.holds for each in rankings]).all(0)
    for condition in query.where:
        holds &= _range(atlas, condition)
    first = rankings[0]
    details = {name: column for each in rankings for name, column in each.details.items()}
    details |= {each.what: each.value for each in rankings[1:]}
    order = first.value.argsort(descending=True, stable=True)
    return [
        Found(
            layer=atlas.heads[at].layer,
            head=atlas.heads[at].head,
            value=float(first.value[at]),
            what=first.what,
            kl=atlas.heads[at].kl,
            matters=atlas.heads[at].matters,
            details={name: float(column[at]) for name, column in details.items()},
        )
        for at in order[holds[order]].tolist()
    ]


def _rankings(atlas: Atlas, query: Query) -> list[_Ranking]:
    found = []
    if query.token is not None:
        found.append(_by_token(atlas, query.token, suppressed=False))
    if query.suppressed is not None:
        found.append(_by_token(atlas, query.suppressed, suppressed=True))
    if query.role is not None:
        found.append(_by_role(atlas, query.role))
    if query.like is not None:
        found.append(_by_similarity(atlas, query.like))
    if query.matters_in is not None:
        found.append(_by_text(atlas, query.matters_in, query.not_in))
    elif query.not_in is not None:
        raise UsageError(
            f"where else should heads matter than in {query.not_in!r}?",
            hint="give --matters-in SOURCE as well",
        )
    return found


def _by_token(atlas: Atlas, text: str, *, suppressed: bool) -> _Ranking:
    kind: Kind = "suppressed" if suppressed else "promoted"
    ids, part = effect_parts(atlas.records, kind)  # [n, head, top]
    # A word is asked for without the space before it; a text with a space of its own is exact.
    wanted = [
        token
        for token, each in atlas.tokens.items()
        if each == text or (text == text.strip() and each.strip() == text)
    ]
    found = part * torch.isin(ids, torch.tensor(wanted, dtype=ids.dtype))
    n = (found > 0).any(-1).sum(0)
    if not n.any():
        raise _no_head(atlas, text, ids[part > 0], verb="suppresses" if suppressed else "promotes")
    share = found.sum((0, 2)) / part.sum((0, 2)).clamp_min(1e-12)
    average = share.mean().expand_as(share)
    details = {f"{kind} at positions": n.float(), "average share": average}
    return _Ranking(f"share of effect on {text!r}", share, n > 0, details)


def _no_head(atlas: Atlas, text: str, ids: Tensor, *, verb: str) -> UsageError:
    """No head ever does that to this token: names the nearest tokens, most frequent first."""
    from rapidfuzz import fuzz, process

    counts = ids.long().bincount()
    often = counts.argsort(descending=True)[: int((counts > 0).sum())]
    # Tokens that differ by their case or by the space before them are one suggestion.
    known: dict[str, str] = {}
    for each in atlas.show(often.tolist()):
        known.setdefault(each.strip().lower(), each)
    near = process.extract(text.strip().lower(), list(known), scorer=fuzz.ratio, limit=3)
    names = ", ".join(repr(known[each[0]]) for each in near)
    return UsageError(
        f"no head of this atlas {verb} the token {text!r}",
        hint=f"nearest that some head {verb}: {names}",
    )


def _by_role(atlas: Atlas, role: str) -> _Ranking:
    known = sorted({name for head in atlas.heads for name in head.roles})
    if not known:
        raise UsageError(
            "this atlas holds no roles",
            hint="build it with `--roles`, or score them with `saccade heads roles`",
        )
    if role not in known:
        hint = suggest(role, known, f"roles are {', '.join(known)}")
        raise UsageError(f"no role {role!r} in this atlas", hint=hint)
    score = torch.tensor([head.roles.get(role, float("nan")) for head in atlas.heads])
    return _Ranking(f"role {role}", score.nan_to_num(-torch.inf), ~score.isnan(), {})


def _range(atlas: Atlas, condition: str) -> Tensor:
    """The heads whose metric is in a range."""
    match = re.fullmatch(r"\s*([\w.-]+?)\s*(>=|<=|>|<)\s*(\S+)\s*", condition)
    try:
        assert match is not None, "the pattern of a condition"
        name, sign, bound = match[1], match[2], float(match[3])
        assert math.isfinite(bound), "nothing is above or below it"
    except (AssertionError, ValueError):
        raise UsageError(
            f"expected a metric and a bound, such as kl>0.01, got {condition!r}",
            hint=f"metrics are {', '.join(atlas.metrics)}",
        ) from None
    rows = [atlas.metric_row(at) for at in range(len(atlas.sites))]
    if name not in atlas.metrics:
        hint = suggest(name, atlas.metrics, f"metrics are {', '.join(atlas.metrics)}")
        raise UsageError(f"no metric {name!r}", hint=hint)
    compare = COMPARISONS[sign]
    return torch.tensor([row.get(name) is not None and compare(row[name], bound) for row in rows])


def profiles(atlas: Atlas) -> Float[Tensor, "n head"]:
    """The logarithm of every effect, minus the position's mean and the head's.

    Some positions are open to every head, and some heads matter everywhere; what is left tells
    where a head matters more than others do.
    """
    log = atlas.records.kl.clamp_min(LEAST_KL).log()
    log = log - log.mean(1, keepdim=True)
    return log - log.mean(0)


def _by_similarity(atlas: Atlas, site: tuple[int, int]) -> _Ranking:
    at = atlas.index(*site)
    profile = profiles(atlas)
    scaled = profile / profile.norm(dim=0).clamp_min(1e-12)
    similar = scaled.T @ scaled[:, at]
    others = torch.ones_like(similar, dtype=torch.bool)
    others[at] = False
    return _Ranking(f"correlation of effects with {site[0]}.{site[1]}", similar, others, {})


def _by_text(atlas: Atlas, source: str, other: str | None) -> _Ranking:
    """Heads with larger effects in one source than in another, by the rank test of Mann-Whitney.

    The p-values are those of Benjamini and Hochberg, 1995: of the heads that are found, one in
    twenty is expected to be there by chance. Positions of one window are not independent, so the
    mean of each window is one observation.
    """
    from scipy.stats import false_discovery_control, mannwhitneyu

    first = source_number(atlas, source)
    second = None if other is None else source_number(atlas, other)
    if len(atlas.provenance.sources) < 2 or first == second:
        raise UsageError(
            f"comparing texts needs two sources, this atlas has {atlas.provenance.sources}",
            hint="build an atlas with `--corpus FILE --corpus OTHER`",
        )
    windows, number = atlas.records.window.unique(return_inverse=True)
    n_of = number.bincount().clamp_min(1)
    log = atlas.records.kl.clamp_min(LEAST_KL).log()
    mean = torch.zeros(len(windows), log.shape[1]).index_add_(0, number, log) / n_of[:, None]
    of_window = atlas.source[windows.long()]
    here = mean[of_window == first]
    there = mean[of_window != first] if second is None else mean[of_window == second]
    if min(len(here), len(there)) < 2:
        raise UsageError(
            f"{min(len(here), len(there))} windows are too few for a test",
            hint="build an atlas of more tokens",
        )
    test = mannwhitneyu(here.double().numpy(), there.double().numpy(), alternative="greater")
    p = torch.from_numpy(false_discovery_control(test.pvalue))
    kl, rows = atlas.records.kl, of_window[number]
    inside = kl[rows == first].mean(0)
    outside = (kl[rows != first] if second is None else kl[rows == second]).mean(0)
    details = {"kl there": inside, "kl elsewhere": outside, "p": p.float()}
    area = torch.from_numpy(test.statistic / (len(here) * len(there))).float()
    return _Ranking("chance of a larger effect there", area, p < CHANCE, details)


def source_number(atlas: Atlas, name: str) -> int:
    """The number of a source by its name, or by a part of it that no other has."""
    sources = atlas.provenance.sources
    found = [at for at, each in enumerate(sources) if name == each] or [
        at for at, each in enumerate(sources) if name in each
    ]
    if len(found) != 1:
        several = "several sources" if found else "no source"
        raise UsageError(
            f"{several} of this atlas {'have' if found else 'is called'} {name!r}",
            hint=f"sources are {', '.join(sources)}",
        )
    return found[0]
