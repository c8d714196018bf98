"""Attend: score every key, select, and read the values by the weights."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.zoo.attention.scores import AdditiveScore, Score
from saccade.zoo.attention.select import Select, Selected, SoftSelect
from saccade.zoo.fast.forms import is_fast
from saccade.zoo.fast.soft_attention import StepMemory, additive_step, prepare_steps, read_one


def read(
    weights: Float[Tensor, "batch query_pos key_pos"],
    values: Float[Tensor, "batch key_pos d_value"],
) -> Float[Tensor, "batch query_pos d_value"]:
    """``context = sum_j weights[j] values[j]``.

    >>> read(torch.tensor([[[0.25, 0.75]]]), torch.tensor([[[0.0, 4.0], [8.0, 0.0]]]))
    tensor([[[6., 1.]]])
    """
    if is_fast() and weights.shape[1] == 1 and torch.is_grad_enabled():
        return read_one(weights, values)
    return weights @ values


class Memory(NamedTuple):
    """What can be attended: built once per sentence by `Attention.remember`, read at every step."""

    keys: Float[Tensor, "batch key_pos d_projected"]
    """As projected by the score."""
    values: Float[Tensor, "batch key_pos d_value"]
    mask: Bool[Tensor, "batch key_pos"]
    """True = may attend."""
    exponentials: Float[Tensor, "batch key_pos d_projected"] | None = None
    """Of the keys, where they speed up a step (`saccade.zoo.fast.soft_attention`)."""


class Attended(NamedTuple):
    """Context and weights."""

    context: Float[Tensor, "batch query_pos d_value"]
    weights: Float[Tensor, "batch query_pos key_pos"]
    log_prob: Float[Tensor, "batch query_pos"] | None = None
    """Log-probability of the sampled choice; None for a deterministic select."""
    entropy: Float[Tensor, "batch query_pos"] | None = None
    """Entropy of the choice, in nats; None for a deterministic select."""


class Attention(nn.Module):
    """Any score with any select, and the weighted read: ``context = sum_j weights[j] values[j]``.

    Bahdanau et al., 2015 (https://arxiv.org/abs/1409.0473), equation 5.

    >>> from saccade.zoo.attention.scores import DotScore
    >>> from saccade.zoo.attention.select import SoftSelect
    >>> attention = Attention(DotScore(d_query=2, d_key=2), SoftSelect())
    >>> memory = attention.remember(torch.tensor([[[1.0, 1.0], [3.0, 1.0]]]))
    >>> attention(torch.tensor([[[0.0, 5.0]]]), memory).context  # both keys answer alike
    tensor([[[2., 1.]]])
    """

    def __init__(self, score: Score, select: Select) -> None:
        super().__init__()
        self.score = score
        self.select = select
        self._is_one_step = isinstance(score, AdditiveScore) and isinstance(select, SoftSelect)

    def remember(
        self,
        keys: Float[Tensor, "batch key_pos d_key"],
        values: Float[Tensor, "batch key_pos d_value"] | None = None,
        *,
        mask: Bool[Tensor, "batch key_pos"] | None = None,
    ) -> Memory:
        """Project the keys, once for all queries.

        Args:
            values: What is read. Default: the keys.
            mask: True = may attend. Default: all may.
        """
        if mask is None:
            mask = keys.new_ones(keys.shape[:2]).bool()
        if values is None:
            values = keys
        projected = self.score.project(keys)
        if self._is_one_step and is_fast():
            return Memory(*prepare_steps(projected, values, mask))
        return Memory(projected, values, mask)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        memory: Memory,
        *,
        previous: Float[Tensor, "batch 1 key_pos"] | None = None,
    ) -> Attended:
        """Read the memory for every query.

        Args:
            previous: The weights of the previous step, None at the first. A decoder may always pass
                them: only the mixed score and monotonic select use them.
        """
        if self._is_one_step and query.shape[1] == 1 and is_fast():
            return self._step(query, memory)
        looking_back = (previous,)
        scores = self.score(query, memory.keys, *(looking_back if self.score.looks_back else ()))
        mask = memory.mask[:, None]  # [batch, 1, key_pos]
        selected: Selected = self.select(
            scores, mask, *(looking_back if self.select.looks_back else ())
        )
        context = read(selected.weights, memory.values)
        return Attended(context, selected.weights, selected.log_prob, selected.entropy)

    def _step(self, query: Float[Tensor, "batch 1 d_query"], memory: Memory) -> Attended:
        """The same for one query, where a faster form exists."""
        assert isinstance(self.score, AdditiveScore)
        of_query, v = self.score.query_proj.weight, self.score.score_proj.weight
        return Attended(*additive_step(query[:, 0], StepMemory(*memory), of_query=of_query, v=v))
