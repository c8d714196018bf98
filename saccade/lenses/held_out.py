"""Held-out positions, ready to judge lenses with: the model's predictions on words that matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.lenses.lens import Lens
from saccade.lenses.sample import Sample
from saccade.lenses.words import Words, sample_words

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

N_WORDS = 2048
# Word probabilities held at once while the words are chosen.
CHUNK_BYTES = 128 * 2**20


@dataclass(frozen=True)
class HeldOut:
    """A sample of text that nothing was fitted on, with the model's own predictions for it."""

    sample: Sample
    words: Words
    teacher: Float[Tensor, "n word"]
    """The model's probabilities, times the weight of each word."""
    vectors: Float[Tensor, "word d_model"]
    """The unembedding of the words."""
    constant: Float[Tensor, " word"]
    """The log probabilities of the constant lens."""
    negentropy: float
    """Mean of sum p log p over the whole vocabulary: KL is this less the cross-entropy."""

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        sample: Sample,
        constant: Float[Tensor, " d_vocab"],
        *,
        seed: int = 0,
        n_words: int = N_WORDS,
    ) -> HeldOut:
        """Choose the words for a sample; the same for the same seed."""
        final, unembedding = sample.final.float(), model.unembedding
        n, device = len(final), unembedding.weight.device
        constant = constant.to(device)
        likely, mean = constant.exp(), constant.exp().double()
        log_total: list[Tensor] = []
        negentropy = 0.0
        # All positions x all words would be gigabytes for a large vocabulary.
        for some in final.split(max(1, CHUNK_BYTES // (4 * len(constant)))):
            logits = unembedding.logits(some).float()  # [n, d_vocab]
            log_total.append(logits.logsumexp(-1, keepdim=True))
            logits -= log_total[-1]
            p = logits.exp()
            likely = torch.maximum(likely, p.amax(0))
            mean += p.sum(0) / n
            negentropy += float((logits.mul_(p)).sum(-1).double().sum()) / n
        words = sample_words(
            likely,
            mean.float(),
            n_words=min(n_words, len(constant)),
            generator=torch.Generator().manual_seed(seed),
        )
        log_p = unembedding.logits(final, words=words.ids).float() - torch.cat(log_total)
        return cls(
            sample=sample,
            words=words,
            teacher=(log_p + words.log_weight).exp(),
            vectors=unembedding.weight[words.ids].float(),
            constant=constant[words.ids],
            negentropy=negentropy,
        )

    def kl(self, lens: Lens, layer: int) -> Float[Tensor, " head"]:
        """KL(model || lens) of each head, averaged over the positions."""
        return self.kl_of(self.logits(lens, layer))

    @torch.no_grad()
    def logits(self, lens: Lens, layer: int) -> Float[Tensor, "n head word"]:
        """What a lens says of the words at every position."""
        held = self.sample.z[layer].to(self.vectors.device, torch.float32)
        return lens(held, words=self.words.ids)

    def constant_kl(self) -> float:
        """KL(model || constant lens), averaged over the positions."""
        return float(self.kl_of(self.constant.expand(len(self.sample), 1, -1)))

    def kl_of(self, logits: Float[Tensor, "n head word"]) -> Float[Tensor, " head"]:
        """KL from the model to these logits of the words, averaged over the positions."""
        partition = (logits + self.words.log_weight).logsumexp(-1)  # [n, head]
        expected = torch.einsum("nhw,nw->nh", logits, self.teacher)
        # The drawn words hold the model's probability only on average; with the true sum of 1 for
        # each position the error of the two terms no longer cancels, so the drawn sum is used.
        mass = self.teacher.sum(-1, keepdim=True)
        return self.negentropy + (partition * mass - expected).mean(0).cpu()
