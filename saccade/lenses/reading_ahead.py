"""The text that the polish learns from: a few positions of many windows at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.heads import capture
from saccade.lenses.batches import windows_of_step
from saccade.processes import Processes

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.corpus import Corpus

# Every other position: neighbours are alike, so this loses less than reading half as much text.
POSITION_STRIDE = 2
# The windows of so many steps are learnt from together. With 1, eight windows a step, the noise
# of a step is so large for some heads that they end worse than they began.
AHEAD = 4


class Read(NamedTuple):
    """What the heads held, and the final states, at some positions."""

    z: dict[int, Float[Tensor, "n head d_head"]]
    final: Float[Tensor, "n d_model"]


class Ahead:
    """The text of a step and of the next ones, as the heads held it.

    Each window is read once. A quarter of its positions is learnt from in its own step, the others
    in the steps before it.
    """

    def __init__(
        self,
        model: LanguageModel,
        corpus: Corpus,
        processes: Processes,
        *,
        rows: int,
        seed: int,
    ) -> None:
        self.model, self.corpus, self.processes = model, corpus, processes
        self.rows, self.seed = rows, seed
        self.parts: dict[int, list[Read]] = {}

    def at(self, step: int) -> Read:
        """What this process learns from in a step."""
        for each in range(step, step + AHEAD):
            if each not in self.parts:
                self.parts[each] = self._read(each)
        some = [self.parts[step + k][k] for k in range(AHEAD)]
        del self.parts[step]
        z = {layer: torch.cat([read.z[layer] for read in some]) for layer in some[0].z}
        return Read(z, torch.cat([read.final for read in some]))

    def _read(self, step: int) -> list[Read]:
        n_windows, length = self.corpus.windows.shape
        windows = windows_of_step(n_windows, step, rows=self.rows, seed=self.seed)
        mine = windows[self.processes.rank :: self.processes.world]
        if not len(mine):
            return [self._nothing()] * AHEAD
        ids = self.corpus.windows[mine].to(self.model.device)
        captured = capture(self.model, ids)
        # Even positions of some windows and odd ones of others, because windows may begin alike;
        # and in the next round through the text the other way round.
        offset = (mine + (step - 1) * self.rows // n_windows) % POSITION_STRIDE
        first = self.model.encoding.n_skipped
        column = POSITION_STRIDE * torch.arange(max(1, (length - first) // POSITION_STRIDE))
        place = (first + column + offset[:, None]).clamp_max(length - 1)
        is_text = self.model.is_text(ids).cpu().gather(1, place)

        def part(held: Tensor, k: int) -> Tensor:
            row, at = is_text[:, k::AHEAD].nonzero().unbind(1)
            return held[row.to(held.device), place[:, k::AHEAD][row, at].to(held.device)]

        return [
            Read(
                {layer: part(held, k).float() for layer, held in captured.z.items()},
                part(captured.final, k).float(),
            )
            for k in range(AHEAD)
        ]

    def _nothing(self) -> Read:
        """For a process that has no window of a step."""
        final = torch.zeros(0, self.model.d_model, device=self.model.device)
        layers = self.model.layers
        return Read({at.index: final.new_zeros(0, at.n_heads, at.d_head) for at in layers}, final)
