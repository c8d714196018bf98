"""Held-out positions to score lenses on: the model's predictions for a sample of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.lenses.lens import Lens

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# A sample of the vocabulary that represents all of it, so that sums over tokens stay cheap.


class SampledTokens(NamedTuple):
    """Token ids, and the log weight of each in a sum over the vocabulary."""

    ids: Int[Tensor, " token"]
    log_weight: Float[Tensor, " token"]


def sample_tokens(
    likely: Float[Tensor, " d_vocab"],
    proposal: Float[Tensor, " d_vocab"],
    *,
    n_tokens: int,
    generator: torch.Generator,
) -> SampledTokens:
    """Take the likeliest tokens with certainty, and draw the others by importance sampling.

    Three quarters of ``n_tokens`` are those with the largest ``likely`` (weight 1); the rest are
    drawn from ``proposal`` among all other tokens, each with the weight 1 / (draws * probability).
    For any g, ``sum(exp(log_weight) * g[ids])`` then has the expectation ``sum(g)``: sums over the
    vocabulary are unbiased; a log of such a sum is off by half its relative variance, which the
    certain tokens keep small.

    >>> p = torch.tensor([0.5, 0.2, 0.2, 0.05, 0.05])
    >>> tokens = sample_tokens(p, p, n_tokens=4, generator=torch.Generator().manual_seed(0))
    >>> tokens.ids[:3], round(float((tokens.log_weight.exp() * p[tokens.ids]).sum()), 6)
    (tensor([0, 1, 2]), 1.0)
    """
    if n_tokens >= len(likely):
        every = torch.arange(len(likely), device=likely.device)
        return SampledTokens(every, torch.zeros(len(likely), device=likely.device))
    n_certain = n_tokens * 3 // 4
    n_drawn = n_tokens - n_certain
    certain = likely.topk(n_certain).indices
    rest = torch.ones_like(likely, dtype=torch.bool).index_fill_(0, certain, False).nonzero()[:, 0]
    # The floor keeps tokens with probability zero under the proposal reachable.
    chance = proposal[rest].double().clamp_min(1e-12)
    chance = (chance / chance.sum()).cpu()
    drawn = torch.multinomial(chance, n_drawn, replacement=True, generator=generator)
    weight = -(chance[drawn] * n_drawn).log()
    ids = torch.cat([certain, rest[drawn.to(rest.device)]])
    log_weight = torch.cat([torch.zeros(n_certain), weight.float()])
    return SampledTokens(ids, log_weight.to(ids.device))


# Positions of a text, with all the data that the lenses of a model need.


@dataclass(frozen=True)
class Sample:
    """The activations of the heads at some positions, and the model's final state there."""

    z: dict[int, Float[Tensor, "n head d_head"]]
    final: Float[Tensor, "n d_model"]
    priority: Int[Tensor, " n"] | None = None
    """If there are too many positions, those with the smallest priority are kept."""

    def __len__(self) -> int:
        return len(self.final)

    @classmethod
    def take(
        cls,
        z: Mapping[int, Float[Tensor, "batch pos head d_head"]],
        final: Float[Tensor, "batch pos d_model"],
        index: Int[Tensor, " n"],
        *,
        priority: Int[Tensor, " n"] | None = None,
    ) -> Sample:
        """The positions ``index`` of a batch, counted row by row, as a copy."""
        at = index.to(final.device)
        return cls(
            z={
                layer: activation.flatten(0, 1)[at.to(activation.device)]
                for layer, activation in z.items()
            },
            final=final.flatten(0, 1)[at],
            priority=priority,
        )

    @classmethod
    def join(cls, samples: Sequence[Sample]) -> Sample:
        """All positions of several samples."""
        layers = samples[0].z
        priority = [each.priority for each in samples if each.priority is not None]
        return cls(
            z={layer: torch.cat([each.z[layer] for each in samples]) for layer in layers},
            final=torch.cat([each.final for each in samples]),
            priority=torch.cat(priority) if len(priority) == len(samples) else None,
        )

    def __getitem__(self, index: Int[Tensor, " n"] | slice) -> Sample:
        return Sample(
            z={layer: activation[index] for layer, activation in self.z.items()},
            final=self.final[index],
            priority=None if self.priority is None else self.priority[index],
        )

    def smallest(self, n: int) -> Sample:
        """The ``n`` positions with the smallest priorities, in order of priority."""
        assert self.priority is not None, "these positions were not sampled by priority"
        return self[self.priority.argsort(stable=True)[:n]]

    def to(self, dtype: torch.dtype) -> Sample:
        """The same sample in another dtype: bfloat16 halves the memory."""
        z = {layer: activation.to(dtype) for layer, activation in self.z.items()}
        return Sample(z=z, final=self.final.to(dtype), priority=self.priority)

    def tensors(self) -> dict[str, Tensor]:
        """As named tensors, for storage."""
        named = {f"sample.{layer}.z": activation for layer, activation in self.z.items()}
        if self.priority is not None:
            named["sample.priority"] = self.priority
        return {**named, "sample.final": self.final}

    @classmethod
    def from_tensors(cls, named: Mapping[str, Tensor]) -> Sample:
        """From named tensors; other tensors are ignored."""
        z = {
            int(name.split(".")[1]): activation
            for name, activation in named.items()
            if name.startswith("sample.") and name.endswith(".z")
        }
        return cls(z=z, final=named["sample.final"], priority=named.get("sample.priority"))


N_TOKENS = 2048
# Memory of the token probabilities held at once while the tokens are chosen.
CHUNK_BYTES = 128 * 2**20


@dataclass(frozen=True)
class HeldOut:
    """A sample of text not used for fitting, with the model's own predictions for it."""

    sample: Sample
    tokens: SampledTokens
    teacher: Float[Tensor, "n token"]
    """The model's probabilities, times the weight of each token."""
    vectors: Float[Tensor, "token d_model"]
    """The unembedding of the tokens."""
    baseline: Float[Tensor, " token"]
    """The log probabilities of the baseline lens."""
    negentropy: float
    """Mean of sum p log p over the whole vocabulary: KL is this plus the cross-entropy."""

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        sample: Sample,
        baseline: Float[Tensor, " d_vocab"],
        *,
        seed: int = 0,
        n_tokens: int = N_TOKENS,
    ) -> HeldOut:
        """Choose the tokens for a sample; deterministic for a given seed."""
        final, unembedding = sample.final.float(), model.unembedding
        n, device = len(final), unembedding.weight.device
        baseline = baseline.to(device)
        likely, mean = baseline.exp(), baseline.exp().double()
        log_total: list[Tensor] = []
        negentropy = 0.0
        # All positions x all tokens would take gigabytes for a large vocabulary.
        for some in final.split(max(1, CHUNK_BYTES // (4 * len(baseline)))):
            logits = unembedding.logits(some).float()  # [n, d_vocab]
            log_total.append(logits.logsumexp(-1, keepdim=True))
            logits -= log_total[-1]
            p = logits.exp()
            likely = torch.maximum(likely, p.amax(0))
            mean += p.sum(0) / n
            negentropy += float((logits.mul_(p)).sum(-1).double().sum()) / n
        tokens = sample_tokens(
            likely,
            mean.float(),
            n_tokens=min(n_tokens, len(baseline)),
            generator=torch.Generator().manual_seed(seed),
        )
        log_p = unembedding.logits(final, tokens=tokens.ids).float() - torch.cat(log_total)
        return cls(
            sample=sample,
            tokens=tokens,
            teacher=(log_p + tokens.log_weight).exp(),
            vectors=unembedding.weight[tokens.ids].float(),
            baseline=baseline[tokens.ids],
            negentropy=negentropy,
        )

    def kl(self, lens: Lens, layer: int) -> Float[Tensor, " head"]:
        """KL(model || lens) of each head, averaged over the positions."""
        return self.kl_of(self.logits(lens, layer))

    @torch.no_grad()
    def logits(self, lens: Lens, layer: int) -> Float[Tensor, "n head token"]:
        """The logits that a lens gives to the tokens at every position."""
        activation = self.sample.z[layer].to(self.vectors.device, torch.float32)
        return lens(activation, tokens=self.tokens.ids)

    def baseline_kl(self) -> float:
        """KL(model || baseline lens), averaged over the positions."""
        return float(self.kl_of(self.baseline.expand(len(self.sample), 1, -1)))

    def kl_of(self, logits: Float[Tensor, "n head token"]) -> Float[Tensor, " head"]:
        """KL from the model to these logits of the tokens, averaged over the positions."""
        partition = (logits + self.tokens.log_weight).logsumexp(-1)  # [n, head]
        expected = torch.einsum("nhw,nw->nh", logits, self.teacher)
        # The weighted probabilities of the sampled tokens sum to 1 only on average. With the true
        # sum of 1 the errors of the two terms would not cancel, so the sampled sum is used.
        mass = self.teacher.sum(-1, keepdim=True)
        return self.negentropy + (partition * mass - expected).mean(0).cpu()
