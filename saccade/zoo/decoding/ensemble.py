"""Several models decoded as one: ensembles, language model fusion, rescoring."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.cells.cell import select_rows
from saccade.zoo.decoding.stepper import Hypothesis, Started, Stepped, Stepper, first_tensor
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD


class Ensemble:
    """A stepper whose prediction is the mean of its members' probabilities.

    Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), section 3.6: five such models with a
    beam of 12 gain over four BLEU points on one of them. The paper does not say how it combines
    them; the mean of probabilities is the prediction of a mixture. All members read the same
    source. The attention weights are the mean of the members', where all return them.
    """

    def __init__(self, members: Sequence[Stepper]) -> None:
        if not members:
            raise UsageError("an ensemble needs at least one model, got none", hint="name its runs")
        self.members = tuple(members)

    def start(self, source: Any) -> Started:
        """Let each member read the source."""
        started = [member.start(source) for member in self.members]
        return Started(tuple(s.memory for s in started), tuple(s.state for s in started))

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Step each member and average the predictions."""
        each = zip(self.members, memory, state, strict=True)
        stepped = [member.step(tokens, m, s) for member, m, s in each]
        return Stepped(
            log_probs=log_mean([one.log_probs for one in stepped]),
            state=tuple(one.state for one in stepped),
            weights=_mean([one.weights for one in stepped]),
            stop=_log_odds_of_mean([one.stop for one in stepped]),
        )


def log_mean(log_probs: Sequence[Float[Tensor, "row d_vocab"]]) -> Float[Tensor, "row d_vocab"]:
    """The logarithm of the mean of probabilities, from their logarithms."""
    sizes = [one.shape[1] for one in log_probs]
    if len(set(sizes)) > 1:
        raise UsageError(
            f"the models of an ensemble must share a vocabulary, got sizes {sizes}",
            hint="use models trained with the same vocabulary file",
        )
    return reduce(torch.logaddexp, log_probs) - math.log(len(log_probs))


def _mean(weights: Sequence[Tensor | None]) -> Tensor | None:
    known = [one for one in weights if one is not None]
    if len(known) < len(weights) or len({one.shape for one in known}) > 1:
        return None
    return torch.stack(known).mean(0)


def _log_odds_of_mean(stops: Sequence[Tensor | None]) -> Tensor | None:
    known = [one for one in stops if one is not None]
    if not known:
        return None
    assert len(known) == len(stops), "some members stop by coin and some by end symbol"
    return torch.stack(known).sigmoid().mean(0).logit()


# Fusion of a translator with a language model of the target language.
#
# Gulcehre et al., 2015 (https://arxiv.org/abs/1503.03535). *Shallow* fusion adds the language
# model's log-probabilities while decoding. *Deep* fusion feeds the language model's hidden state to
# the translator; it has to be trained, with the language model frozen.


class ShallowFusion:
    """A stepper that scores by ``log p_translator + weight * log p_language_model``.

    Section 4.1. The sums are scores, no longer the logarithms of probabilities that sum to one, as
    in the paper. Both models must have the same vocabulary.

    Args:
        language_model: Its ``start`` takes the number of sentences.
        weight: The paper's beta, chosen on a development set.
    """

    def __init__(
        self, translator: Stepper, language_model: Stepper, *, weight: float = 0.1
    ) -> None:
        if weight < 0:
            raise UsageError(
                f"the weight of a language model must not be negative, got {weight}",
                hint="0 disables it",
            )
        self.translator, self.language_model, self.weight = translator, language_model, weight

    def start(self, source: Any) -> Started:
        """Start the translator on the source, and the language model on as many sentences."""
        translator = self.translator.start(source)
        language_model = self.language_model.start(len(first_tensor(translator.state)))
        return Started(
            (translator.memory, language_model.memory), (translator.state, language_model.state)
        )

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Step both and add their scores."""
        translator = self.translator.step(tokens, memory[0], state[0])
        language_model = self.language_model.step(tokens, memory[1], state[1])
        sizes = translator.log_probs.shape[1], language_model.log_probs.shape[1]
        if sizes[0] != sizes[1]:
            raise UsageError(
                f"the translator has {sizes[0]} symbols and the language model {sizes[1]}",
                hint="train the language model with the translator's target vocabulary",
            )
        return Stepped(
            log_probs=translator.log_probs + self.weight * language_model.log_probs,
            state=(translator.state, language_model.state),
            weights=translator.weights,
            stop=translator.stop,
        )


class Fused(NamedTuple):
    """Input of the output layer of a translator with deep fusion."""

    hidden: Float[Tensor, "*at d_fused"]
    gate: Float[Tensor, "*at 1"]
    """Gate of the language model, between 0 and 1."""


class DeepFusion(nn.Module):
    """Concatenate a translator's hidden state with a gated one of a language model.

    Section 4.2: ``[s_TM ; g * s_LM]`` with ``g = sigmoid(v . s_LM + b)``. The paper adds the
    previous word and the context; a translator adds those to ``hidden`` itself, as it does without
    fusion. No gradient goes back into the language model.

    Args:
        d_language_model: Size of the language model's state.
        gate_bias: Initial value of b. With the paper's -1 the gate starts at about a quarter.
    """

    def __init__(self, d_language_model: int, *, gate_bias: float = -1.0) -> None:
        super().__init__()
        self.gate = nn.Linear(d_language_model, 1)
        nn.init.constant_(self.gate.bias, gate_bias)

    def forward(
        self,
        hidden: Float[Tensor, "*at d_hidden"],
        language_model: Float[Tensor, "*at d_language_model"],
    ) -> Fused:
        """Gate the language model's state and append it."""
        frozen = language_model.detach()
        gate = torch.sigmoid(self.gate(frozen))  # [*at, 1]
        return Fused(torch.cat([hidden, gate * frozen], dim=-1), gate)


# Rescoring of n-best lists by a second model.
#
# Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), section 3.2: the 1000 best of a
# phrase-based system, ranked by the average of its score and the network's.

Scorer = Callable[[list[list[list[int]]]], list[list[float]]]
"""From the hypotheses of each sentence, as symbols, to a score for each."""


def rescore(
    n_best: Sequence[Sequence[Hypothesis]], scorer: Scorer, *, weight: float = 0.5
) -> list[list[Hypothesis]]:
    """Rank by ``(1 - weight) * score + weight * scorer``, best first.

    Only ``score`` changes; ``log_prob`` stays that of the first model.

    Args:
        weight: 0.5 is the paper's average; 1 ignores the first score.
    """
    second = scorer([[one.ids for one in sentence] for sentence in n_best])
    found = [len(scores) for scores in second]
    if found != (expected := [len(sentence) for sentence in n_best]):
        raise UsageError(
            f"a scorer must score every hypothesis: expected {expected} scores, got {found}",
            hint="return one list per sentence with one number per hypothesis",
        )
    ranked = []
    for sentence, scores in zip(n_best, second, strict=True):
        both = [
            one._replace(score=(1 - weight) * one.score + weight * score)
            for one, score in zip(sentence, scores, strict=True)
        ]
        ranked.append(sorted(both, key=lambda one: one.score, reverse=True))
    return ranked


def by_model(stepper: Stepper, source: Any) -> Scorer:
    """A scorer that returns another model's log-probability of each hypothesis."""

    def score(hypotheses: list[list[list[int]]]) -> list[list[float]]:
        log_prob = log_prob_of(stepper, source, hypotheses).tolist()
        return [row[: len(group)] for row, group in zip(log_prob, hypotheses, strict=True)]

    return score


@torch.no_grad()
def log_prob_of(
    stepper: Stepper, source: Any, hypotheses: list[list[list[int]]]
) -> Float[Tensor, "sentence n"]:
    """The log-probability of given sequences, including their end symbol.

    A sentence with fewer hypotheses than another is padded with meaningless values.
    """
    memory, state = stepper.start(source)
    first = first_tensor(state)
    if len(first) != len(hypotheses):
        raise UsageError(
            f"hypotheses for {len(hypotheses)} sentences, but the source has {len(first)}",
            hint="give the source that the hypotheses were made from",
        )
    targets, is_real = (part.to(first.device) for part in _padded(hypotheses))
    n = targets.shape[1]
    state = select_rows(state, torch.arange(len(first), device=first.device).repeat_interleave(n))
    log_prob = torch.zeros(len(first), n, device=first.device)
    tokens = torch.full((len(first) * n,), BOS, device=first.device)
    for target, real in zip(targets.unbind(2), is_real.unbind(2), strict=True):
        stepped = stepper.step(tokens, memory, state)
        tokens, state = target.flatten(), stepped.state
        gained = stepped.log_probs.gather(1, tokens[:, None]).view_as(log_prob)
        log_prob += gained.masked_fill(~real, 0.0)
    return log_prob


class _Padded(NamedTuple):
    """Hypotheses with their end symbols as one tensor."""

    ids: Int[Tensor, "sentence n pos"]
    is_real: Bool[Tensor, "sentence n pos"]


def _padded(hypotheses: list[list[list[int]]]) -> _Padded:
    n = max(len(group) for group in hypotheses)
    longest = max((len(ids) for group in hypotheses for ids in group), default=0) + 1
    ids = torch.full((len(hypotheses), n, longest), PAD)
    is_real = torch.zeros_like(ids, dtype=torch.bool)
    for s, group in enumerate(hypotheses):
        for i, one in enumerate(group):
            ids[s, i, : len(one) + 1] = torch.tensor([*one, EOS])
            is_real[s, i, : len(one) + 1] = True
    return _Padded(ids, is_real)
