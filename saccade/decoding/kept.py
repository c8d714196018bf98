"""The best finished hypotheses of each sentence while a beam search goes on."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def length_norm(length: Tensor | int, length_penalty: float) -> Tensor | float:
    """What a log-probability is divided by (Wu et al., 2016, eq. 14).

    >>> length_norm(1, 0.7), length_norm(13, 1.0)
    (1.0, 3.0)
    """
    return ((5 + length) / 6) ** length_penalty


class Kept:
    """For each sentence its ``n_best`` finished hypotheses so far, best first."""

    def __init__(
        self, n_sentences: int, n_best: int, *, length_penalty: float, device: torch.device
    ) -> None:
        self.length_penalty = length_penalty
        self.score = torch.full((n_sentences, n_best), -torch.inf, device=device)
        self.log_prob = self.score.clone()
        self.step = torch.zeros_like(self.score, dtype=torch.long)
        """At which step it ended: its length, the end symbol counted."""
        self.beam = torch.zeros_like(self.step)
        """Its place in the beam before that step."""

    def add(
        self, log_prob: Float[Tensor, "open beam"], *, sentence: Int[Tensor, " open"], step: int
    ) -> None:
        """Take in what ended at this step, minus infinity for what did not, of some sentences."""
        score = log_prob / length_norm(step, self.length_penalty)
        if not (score > self.score[sentence, -1:]).any():
            return
        place = torch.arange(score.shape[1], device=score.device).expand_as(score)
        self.score[sentence], at = torch.cat([self.score[sentence], score], dim=1).topk(
            self.score.shape[1]
        )
        for mine, new in (
            (self.log_prob, log_prob),
            (self.step, torch.full_like(place, step)),
            (self.beam, place),
        ):
            mine[sentence] = torch.cat([mine[sentence], new], dim=1).gather(1, at)

    def could_be_beaten(
        self,
        log_prob: Float[Tensor, " open"],
        sentence: Int[Tensor, " open"],
        *,
        step: int,
        limit: Int[Tensor, " open"],
    ) -> Bool[Tensor, " open"]:
        """Whether the worst kept could still be overtaken by an open hypothesis.

        A log-probability only falls, and the norm changes one way with the length; so the most
        that can be reached is today's log-probability over the norm of the next or the last length.

        Args:
            log_prob: Of the best open hypothesis.
            limit: The longest that a hypothesis may become.
        """
        soon = log_prob / length_norm(step + 1, self.length_penalty)
        late = log_prob / length_norm(limit, self.length_penalty)
        return (torch.maximum(soon, late) > self.score[sentence, -1]) & (step < limit)
