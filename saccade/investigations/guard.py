"""Tell prompts that carry an injected instruction from ordinary ones, by what the heads say.

Attention Lens (https://arxiv.org/abs/2310.16270), section 4, shows that heads say other words when
an instruction is injected into a prompt. Tuned Lens (https://arxiv.org/abs/2303.08112), section
4.2, detects injections as outliers of what lenses of the residual stream say of the answer. Here
the lenses are the heads', and every stretch of a prompt is read. An outlier detector on that finds
odd subjects sooner than orders, so we ask a narrower question, still without any attack: does a
stretch of this prompt sound like a request that somebody put into it?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.investigations.guard_discriminant import Discriminant
from saccade.investigations.guard_features import Readout
from saccade.investigations.guard_verdict import HeadAlarm, Verdict
from saccade.investigations.prompt_batches import encode_prompts, prompt_rows
from saccade.lenses.head_reading import Word
from saccade.lenses.top_words import what_is_said

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses


@dataclass(frozen=True)
class Guard:
    """Knows what heads say over ordinary prompts, and reports others; `fit_guard` makes one."""

    lenses: Lenses
    readout: Readout
    discriminant: Discriminant
    ordinary: Float[Tensor, " prompt"]
    """The scores of ordinary prompts, each from a fit without it, in order."""
    threshold: float
    source: str = ""
    """Where the ordinary prompts came from."""

    @property
    def layers(self) -> list[int]:
        """Whose heads it reads."""
        return list(self.readout.usual)

    def score_of(self, z: Mapping[int, Float[Tensor, "pos head d_head"]]) -> float:
        """The score of one prompt from what its heads hold: that of its worst stretch."""
        return float(self.discriminant.log_odds(self.readout.points(z).features).max())

    def scores(self, prompts: Sequence[str]) -> Float[Tensor, " prompt"]:
        """How much each prompt sounds like an injected one: one forward pass each."""
        encoded = encode_prompts(self.lenses.model, prompts)
        found = torch.zeros(len(prompts), dtype=torch.double)
        for row in prompt_rows(self.lenses.model, encoded, layers=self.layers):
            found[row.prompt] = self.score_of(row.z)
        return found

    def judge(self, prompts: Sequence[str], *, heads: int = 3, words: int = 5) -> list[Verdict]:
        """Score prompts, and for those that are reported find the heads and words that did it."""
        encoded = encode_prompts(self.lenses.model, prompts)
        found: dict[int, Verdict] = {}
        for row in prompt_rows(self.lenses.model, encoded, layers=self.layers):
            found[row.prompt] = self._verdict(
                prompts[row.prompt], encoded[row.prompt], row.z, heads, words
            )
        return [found[row] for row in range(len(prompts))]

    def _verdict(
        self,
        prompt: str,
        ids: Int[Tensor, " pos"],
        z: dict[int, Tensor],
        heads: int,
        words: int,
    ) -> Verdict:
        points = self.readout.points(z)
        log_odds = self.discriminant.log_odds(points.features)
        worst = int(log_odds.argmax())
        start, stop = points.spans[worst]
        score = float(log_odds[worst])
        above = torch.searchsorted(self.ordinary, torch.tensor(score).double())
        alarms: tuple[HeadAlarm, ...] = ()
        if score > self.threshold:
            held = {layer: each[start:stop].mean(0, keepdim=True) for layer, each in z.items()}
            alarms = tuple(
                HeadAlarm(*site, share, self._adds(*site, held, words))
                for site, share in self._parts(points.features[worst])[:heads]
            )
        return Verdict(
            prompt=prompt,
            score=score,
            threshold=self.threshold,
            rarity=1 - int(above) / len(self.ordinary),
            stretch="".join(self.lenses.model.words(ids[start:stop])).strip(),
            heads=alarms,
        )

    def _parts(self, features: Float[Tensor, " feature"]) -> list[tuple[tuple[int, int], float]]:
        """Every head's share of a score, the largest first."""
        shares = self.readout.by_site(self.discriminant.shares(features[None]))[0]
        shares = shares / shares.sum()
        sites = self.readout.sites
        return [(sites[i], float(shares[i])) for i in shares.argsort(descending=True).tolist()]

    def _adds(self, layer: int, head: int, held: dict[int, Tensor], words: int) -> tuple[Word, ...]:
        """The words that a lens says more over a stretch than it does in ordinary prompts."""
        lens = self.lenses.by_layer[layer]
        here = held[layer].to(self.lenses.constant.device)
        both = lens(torch.cat([here, self.readout.usual[layer][None].to(here)]))[:, head]
        said = what_is_said(both[:1], both[1].log_softmax(-1), top=words)
        ids, values = said.adds.ids[0].tolist(), said.adds.values[0].tolist()
        texts = self.lenses.model.words(ids)
        return tuple(Word(*each) for each in zip(ids, texts, values, strict=True) if each[2] > 0)

    def save(self, path: str | Path) -> None:
        """Write it as a folder; see `saccade.investigations.guard_file`."""
        from saccade.investigations.guard_file import save_guard

        save_guard(self, path)
