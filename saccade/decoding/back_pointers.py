"""Where every hypothesis of a beam search came from, and the way back."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.decoding.hypothesis import Table
from saccade.decoding.kept import Kept


class BackPointers:
    """For each step and open hypothesis its last symbol and the hypothesis it continues.

    No sequence is copied while the search goes on; they are read once, backwards, when it is over.
    """

    def __init__(self, n_sentences: int) -> None:
        self.n_sentences = n_sentences
        self.parent: list[Int[Tensor, "sentence beam"]] = []
        self.token: list[Int[Tensor, "sentence beam"]] = []
        self.weights: list[tuple[Tensor, Tensor]] = []

    def add(
        self,
        sentence: Int[Tensor, " open"],
        parent: Int[Tensor, "open beam"],
        token: Int[Tensor, "open beam"],
        weights: Float[Tensor, "row ..."] | None,
    ) -> None:
        """Take down one step of the sentences that are still searched."""
        self.parent.append(self._whole(parent, sentence))
        self.token.append(self._whole(token, sentence))
        if weights is not None:
            self.weights.append((sentence, weights.unflatten(0, (len(sentence), -1))))

    def read(self, kept: Kept) -> Table:
        """Follow the kept hypotheses back to their first symbols."""
        at = kept.beam  # their places in the beam before the step that is looked at
        ids, weights = [], []
        for step in range(len(self.token), 0, -1):
            parent, token = self.parent[step - 1], self.token[step - 1]
            is_inside = kept.step > step
            here = at.clamp_max(token.shape[1] - 1)
            ids.append(token.gather(1, here))
            at = torch.where(is_inside, parent.gather(1, here), at)
            if self.weights:
                weights.append(self._weights_at(at, step))
        return Table(
            ids=torch.stack(ids[::-1], dim=2),
            length=(kept.step - 1).clamp_min(0),
            steps=kept.step,
            log_prob=kept.log_prob,
            score=kept.score,
            weights=torch.stack(weights[::-1], dim=2) if weights else None,
        )

    def _weights_at(
        self, at: Int[Tensor, "sentence n"], step: int
    ) -> Float[Tensor, "sentence n ..."]:
        sentence, weights = self.weights[step - 1]  # [open], [open, beam, ...
        rows = torch.arange(len(sentence), device=at.device)[:, None]
        chosen = weights[rows, at[sentence].clamp_max(weights.shape[1] - 1)]
        return self._whole(chosen, sentence)

    def _whole(self, part: Tensor, sentence: Int[Tensor, " open"]) -> Tensor:
        """Values of the open sentences, spread over all sentences."""
        if len(sentence) == self.n_sentences:
            return part
        return part.new_zeros(self.n_sentences, *part.shape[1:]).index_copy_(0, sentence, part)
