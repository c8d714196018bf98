"""What silencing heads costs: the gender that words have by definition, and perplexity.

A head that carries a stereotype may carry what a model has to know: that a king is a he. Vig et
al., 2020 (https://arxiv.org/abs/2004.12265) leave such words out of their professions; here they
are the test of what an ablation destroys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.capture import run_base
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.heads.onednn import fast_products
from saccade.interp.heads.prompt_batches import encode_prompts, prompt_batches
from saccade.interp.studies.bias.report import Interval, intervals

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel

# Words that are female or male by definition.
FEMALE = (
    *("queen", "mother", "sister", "wife", "daughter", "aunt", "grandmother", "girl", "woman"),
    *("lady", "princess", "duchess", "niece", "nun", "bride", "widow", "granddaughter"),
    *("waitress", "actress", "businesswoman"),
)
MALE = (
    *("king", "father", "brother", "husband", "son", "uncle", "grandfather", "boy", "man"),
    *("gentleman", "prince", "duke", "nephew", "monk", "groom", "widower", "grandson"),
    *("waiter", "actor", "businessman"),
)
# Three of the templates of Vig et al., 2020.
TEMPLATES = ("The {} said that", "The {} laughed because", "The {} went home because")
DRAWS = 1000


class SilencingCost(NamedTuple):
    """What a model loses while heads are ablated, all of them together."""

    heads: tuple[tuple[int, int], ...]
    preference: Interval
    """Of the right pronoun over the other, in nats, over words: the mean without ablation."""
    preference_lost: Interval
    """By how much the ablation lowers it."""
    right: float
    """The share of prompts where the right pronoun is the likelier one."""
    right_ablated: float
    perplexity: float
    perplexity_rise: Interval
    """The relative rise, over texts."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "heads": [list(each) for each in self.heads],
            "definitional_preference": self.preference._asdict(),
            "definitional_preference_lost": self.preference_lost._asdict(),
            "definitional_right": self.right,
            "definitional_right_ablated": self.right_ablated,
            "perplexity": self.perplexity,
            "perplexity_rise": self.perplexity_rise._asdict(),
        }

    def to_line(self) -> str:
        """In one sentence."""
        lost, rise = self.preference_lost, self.perplexity_rise
        return (
            f"silencing {len(self.heads)} heads together costs: of the preference for the right "
            f"pronoun after king, queen, mother, ... ({self.preference.mean:+.2f} nats, right in "
            f"{self.right:.0%}) {lost.mean:.2f} nats [{lost.low:.2f}, {lost.high:.2f}], right in "
            f"{self.right_ablated:.0%}; perplexity {self.perplexity:.1f} rises by "
            f"{rise.mean:.1%} [{rise.low:.1%}, {rise.high:.1%}]"
        )


@torch.no_grad()
def silencing_cost(
    model: LanguageModel,
    heads: Sequence[tuple[int, int]],
    *,
    replacement: Replacement,
    text: Int[Tensor, "batch pos"],
    seed: int = 0,
) -> SilencingCost:
    """Measure definitional words and perplexity with heads ablated at all tokens, and without.

    Args:
        replacement: what the activations are replaced by: the mean, or zero.
        text: several windows of text, for the perplexity.
    """
    changes = ablations(replacement, heads)
    preference, loss = preference_for_right(model), token_loss(model, text)
    with intervene(model, changes, may_do_nothing=True):
        ablated, ablated_loss = preference_for_right(model), token_loss(model, text)
    by_word, lost = preference.mean(1), (preference - ablated).mean(1)
    rise = _interval(ablated_loss - loss, seed)
    return SilencingCost(
        heads=tuple(heads),
        preference=_interval(by_word, seed),
        preference_lost=_interval(lost, seed),
        right=float((preference > 0).double().mean()),
        right_ablated=float((ablated > 0).double().mean()),
        perplexity=float(loss.mean().exp()),
        perplexity_rise=Interval(*(float(torch.tensor(each).expm1()) for each in rise)),
    )


def ablations(replacement: Replacement, heads: Sequence[tuple[int, int]]) -> list[Ablate]:
    """The ablation of heads at all tokens of all texts."""
    if replacement.by == "zero":
        return [Ablate(layer, head) for layer, head in heads]
    values = {layer: replacement.at_last().heads[layer] for layer, _ in heads}
    return [Ablate(layer, head, "mean", values[layer][head]) for layer, head in heads]


@torch.no_grad()
def preference_for_right(model: LanguageModel) -> Float[Tensor, "word template"]:
    """The log-odds of the right pronoun against the other, after each definitional word."""
    words = [*FEMALE, *MALE]
    encoded = encode_prompts(model, [t.format(word) for word in words for t in TEMPLATES])
    she, he = (behind_a_space(model, word)[0] for word in ("she", "he"))
    found = torch.zeros(len(encoded), dtype=torch.double)
    for batch in prompt_batches(encoded):
        with fast_products():
            final = run_base(model.hf, batch.ids, mask=batch.mask)
            logits = model.unembedding.logits(final[torch.arange(len(final)), batch.last])
        found[batch.rows] = (logits[:, she] - logits[:, he]).double().cpu()
    is_female = torch.tensor([1.0] * len(FEMALE) + [-1.0] * len(MALE), dtype=torch.double)
    return found.view(len(words), len(TEMPLATES)) * is_female[:, None]


@torch.no_grad()
def token_loss(model: LanguageModel, text: Int[Tensor, "batch pos"]) -> Float[Tensor, " batch"]:
    """The mean loss over the tokens of each text, in nats."""
    losses = []
    for ids in text:  # one text's logits at once
        with fast_products():
            final = run_base(model.hf, ids[None])[0, :-1]
            log_p = model.unembedding.logits(final).float().log_softmax(-1)
        losses.append(-log_p.gather(1, ids[1:, None].to(log_p.device)).mean().double().cpu())
    return torch.stack(losses)


def _interval(values: Float[Tensor, " item"], seed: int) -> Interval:
    return intervals(values[:, None], draws=DRAWS, seed=seed).at(0)
