"""Which heads favour some words: by their lenses, and by the effect of ablating them.

Attention Lens (https://arxiv.org/abs/2310.16270), section 4, looks for heads whose lens shows a
biased vocabulary for a prompt. Here we measure it: the lens's probability of given words, its
difference between paired prompts, an interval, and an ablation of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.heads.intervene import Ablate, intervene, mean_z
from saccade.interp.heads.prompt_batches import encode_prompts
from saccade.interp.studies.bias.bias_mass import Asked, ask, baseline_mass, lens_mass, model_mass
from saccade.interp.studies.bias.bias_words import PromptPairs, WordTokens, refuse_shared, tokens_of
from saccade.interp.studies.bias.report import (
    Bias,
    Contrast,
    Interval,
    Site,
    clearest_first,
    intervals,
)

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses

Progress = Callable[[str, int, int], None]
FEWEST = 2  # prompts or pairs: one has no interval


@dataclass(frozen=True, kw_only=True)
class BiasConfig:
    """Options of a search for bias."""

    ablate: int = 12
    """Number of heads to ablate, those with the clearest difference."""

    by: Literal["mean", "zero"] = "mean"
    """Replace an ablated head by its mean over the prompts, or by zero."""

    draws: int = 2000
    """Number of bootstrap draws for an interval."""

    seed: int = 0
    """Seed of those draws."""


def find_bias(
    lenses: Lenses,
    words: Sequence[str],
    prompts: PromptPairs,
    *,
    against: Sequence[str] = (),
    config: BiasConfig | None = None,
    progress: Progress | None = None,
) -> Bias:
    """Measure how much the lens of every head favours the words, and ablate the clearest heads.

    For one prompt a head's score is the mass of its lens on ``words``, less that on ``against``.
    For a pair it is the difference between its two prompts; without pairs, the difference from the
    baseline lens, which is the mean prediction. The interval is a percentile bootstrap over
    the pairs or prompts.

    A word of several tokens has the lens's mass on its first token times the model's own
    probability of the others; under ablation too, the others are the whole model's. A word whose
    tokens begin with those of another of its list is part of that one's mass, and counts once.

    Raises:
        UsageError: fewer than two words or prompts, or a word in both lists.
    """
    config = config or BiasConfig()
    model = lenses.model
    named, other = tokens_of(model, words), tokens_of(model, against) if against else None
    if other is not None:
        refuse_shared(named, other)
    asked = ask(model, _encoded(lenses, prompts), _joined(named, other))
    groups = _groups(named, other)
    contrast = Contrast(
        usual=baseline_mass(lenses, asked) @ groups,
        n_pairs=len(prompts.first),
        is_paired=prompts.second is not None,
    )
    mass = lens_mass(lenses, asked, groups)
    first, second = contrast.sides(mass)
    found = intervals(first - second, draws=config.draws, seed=config.seed)
    sites = [lenses.sites[site] for site in clearest_first(found)[: config.ablate]]
    whole = contrast.differences(model_mass(model, asked) @ groups)  # [pair]
    without = _without(lenses, asked, sites, by=config.by, progress=progress)
    carried = {site: whole - contrast.differences(mass @ groups) for site, mass in without.items()}
    return Bias(
        model=model.name,
        words=named.words,
        against=other.words if other is not None else (),
        in_pieces=asked.words.in_pieces,
        n_pairs=contrast.n_pairs,
        is_paired=contrast.is_paired,
        sites=tuple(lenses.sites),
        first=first.mean(0),
        second=second.mean(0),
        difference=found,
        own=_interval(whole, config),
        carried={site: _interval(values, config) for site, values in carried.items()},
        by=config.by,
    )


def _encoded(lenses: Lenses, prompts: PromptPairs) -> list[Tensor]:
    if len(prompts.first) < FEWEST:
        what = "prompts" if prompts.second is None else "pairs of prompts"
        raise UsageError(
            f"expected at least {FEWEST} {what}, got {len(prompts.first)}",
            hint="an interval needs several; about twenty are a good number",
        )
    if any(lens.site == "residual" for lens in lenses.by_layer.values()):
        raise UsageError(
            "these lenses read the residual stream, which has no heads",
            hint="give lenses of heads, as `saccade lens fit` writes them",
        )
    return encode_prompts(lenses.model, [*prompts.first, *(prompts.second or ())])


def _joined(named: WordTokens, other: WordTokens | None) -> WordTokens:
    if other is None:
        return named
    return WordTokens((*named.words, *other.words), (*named.ids, *other.ids))


def _groups(named: WordTokens, other: WordTokens | None) -> Float[Tensor, "word group"]:
    lists = [each.counted for each in (named, other) if each is not None]
    return torch.block_diag(*[torch.tensor(each, dtype=torch.double)[:, None] for each in lists])


def _without(
    lenses: Lenses,
    asked: Asked,
    sites: Sequence[Site],
    *,
    by: Literal["mean", "zero"],
    progress: Progress | None,
) -> dict[Site, Float[Tensor, "prompt word"]]:
    """The model's own mass on the words with one head ablated at every token."""
    model = lenses.model
    usual = mean_z(model, (ids[None] for ids in asked.encoded)) if by == "mean" and sites else {}
    found = {}
    for done, (layer, head) in enumerate(sites, start=1):
        value = usual[layer][head] if by == "mean" else None
        with intervene(model, Ablate(layer, head, by=by, value=value)):
            found[layer, head] = model_mass(model, asked)
        if progress is not None:
            progress("ablating heads", done, len(sites))
    return found


def _interval(values: Float[Tensor, " pair"], config: BiasConfig) -> Interval:
    return intervals(values[:, None], draws=config.draws, seed=config.seed).at(0)
