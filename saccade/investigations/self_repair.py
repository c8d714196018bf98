"""How much of what an ablated head did is done by the layers after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ModelError
from saccade.heads import capture
from saccade.investigations.head_rank import ablated_copies, direct_scores
from saccade.investigations.replacement import Replacement
from saccade.investigations.target import Target

if TYPE_CHECKING:
    from saccade.heads import Captured, LanguageModel

SMALL = 0.1  # logits: a share of less than that is mostly noise


@dataclass(frozen=True)
class Repair:
    """What follows when one head is ablated at the last position, in logits of the score.

    ``total = direct - heads - feed_forward - norm``, exactly.
    """

    total: float
    """By how much the score falls."""
    direct: float
    """By how much it would fall if nothing after the head answered."""
    heads: float
    """What later heads add more than before."""
    feed_forward: float
    """What feed-forward parts add more than before."""
    norm: float
    """What the final norm adds by scaling the changed stream anew."""

    @property
    def share(self) -> float | None:
        """How much of the direct loss was made up: 1 for all, 0 for none, below 0 for the opposite.

        None where hardly anything was lost directly.
        """
        return None if abs(self.direct) < SMALL else 1 - self.total / self.direct

    def to_dict(self) -> dict[str, float]:
        """Its figures by name."""
        share = {} if self.share is None else {"share": self.share}
        return {**asdict(self), **share}


@torch.no_grad()
def self_repair(
    model: LanguageModel, text: str, target: Target, *, replacement: Replacement
) -> dict[tuple[int, int], Repair]:
    """By (layer, head): direct and total effect of ablating it, and what made up the difference.

    McGrath et al., 2023, "The Hydra Effect" (https://arxiv.org/abs/2307.15771): total effect by
    ablation, direct effect through the unembedding, and the rise of the direct effects of later
    layers. They ablate whole attention layers; here it is one head, at the last position, and the
    heads' and the feed-forward parts' answers are apart. The rescaling of the final norm, which
    Rushing and Nanda, 2024 (https://arxiv.org/abs/2402.15390) found to be a large part of it, is
    a figure of its own: every direct effect is taken at the scale of the unchanged run.
    """
    if not all(at.reaches_stream for at in model.layers):
        raise ModelError(
            f"{model.name} norms its stream after each addition: no direct effects to compare",
            hint="rank its heads without the repair",
        )
    ids = model.encode(text)
    clean = capture(model, ids, residual=True)
    before = _Parts.of(model, clean, clean, target)
    found: dict[tuple[int, int], Repair] = {}
    for rows in ablated_copies(model, ids, replacement, only_last=True, keep=True):
        after = _Parts.of(model, rows.captured, clean, target)
        for row, site in enumerate(rows.sites):
            found[site] = before.repair(after, row, site)
    return found


@dataclass(frozen=True)
class _Parts:
    """Where the score of each row comes from, every part at the scale of the clean run."""

    score: Float[Tensor, " batch"]
    stream: Float[Tensor, " batch"]
    """What the stream at its end is worth at that scale."""
    heads: dict[int, Float[Tensor, " batch"]]
    """What all heads of a layer add together."""

    @classmethod
    def of(cls, model: LanguageModel, run: Captured, clean: Captured, target: Target) -> _Parts:
        whole, end = clean.final_residual, run.final_residual
        assert whole is not None and end is not None, "captured with the residual stream"
        along = target.direction(model.unembedding)

        def worth(stream: Tensor) -> Tensor:
            at_end = model.final_norm.frozen(stream[:, -1].to(whole), whole[:, -1])
            return at_end.to(along) @ along

        by_head = direct_scores(model, run._replace(final_residual=_like(whole, end)), target)
        return cls(
            score=target.score(model.unembedding.logits(run.final[:, -1]).float()),
            stream=worth(end),
            heads={layer: scores.sum(-1) for layer, scores in by_head.items()},
        )

    def repair(self, after: _Parts, row: int, site: tuple[int, int]) -> Repair:
        layer = site[0]
        later = {index: after.heads[index][row] - self.heads[index][0] for index in self.heads}
        own, answers = later[layer], sum((float(later[i]) for i in later if i > layer), 0.0)
        in_stream = float(after.stream[row] - self.stream[0])
        total = float(self.score[0] - after.score[row])
        return Repair(
            total=total,
            direct=-float(own),
            heads=answers,
            feed_forward=in_stream - float(own) - answers,
            norm=-total - in_stream,
        )


def _like(whole: Tensor, end: Tensor) -> Tensor:
    """The clean end of the stream for each row."""
    return whole.expand(len(end), -1, -1)
