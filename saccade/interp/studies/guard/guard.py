"""Detect prompts with an injected instruction, from the activations of the heads.

Attention Lens (https://arxiv.org/abs/2310.16270), section 4, shows that the lenses of heads predict
other tokens when an instruction is injected into a prompt. Tuned Lens
(https://arxiv.org/abs/2303.08112), section 4.2, detects injections as outliers of the predictions
of residual-stream lenses for the answer. An outlier detector on lens predictions finds unusual
subjects rather than instructions. Here a linear probe reads the activations of the heads of middle
layers over every span of a prompt, and is fitted on generated prompts: does this span look like an
instruction that was injected? Lenses only show what the heads of an alarm predict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import LensError
from saccade.interp.heads.prompt_batches import encode_prompts, shallow_rows
from saccade.interp.lenses.top_tokens import TokenValue, lens_prediction
from saccade.interp.studies.guard.features import Discriminant, Points, Readout

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses


# The verdict on one prompt, with the heads and tokens that contribute most.

LONGEST = 60  # characters of a prompt or of a span that are shown in a line


class HeadAlarm(NamedTuple):
    """The contribution of one head to a score."""

    layer: int
    head: int
    share: float
    """Of the difference from the mean ordinary span; the shares of all heads sum to 1."""
    adds: tuple[TokenValue, ...]
    """Tokens its lens predicts more than in ordinary prompts: ``p log(p / usual)``, in nats."""

    @property
    def name(self) -> str:
        """Layer and number: 12.3 is head 3 of layer 12."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The score of a prompt, and whether it is reported."""

    prompt: str
    score: float
    """The log odds that its highest-scoring span is an inserted request."""
    threshold: float
    rarity: float
    """Share of ordinary prompts that score at least as high."""
    stretch: str
    """The text of that span."""
    heads: tuple[HeadAlarm, ...] = ()
    """The heads with the largest shares; only for an alarm."""

    @property
    def is_alarm(self) -> bool:
        """Whether the prompt is reported."""
        return self.score > self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        return {
            "prompt": self.prompt,
            "alarm": self.is_alarm,
            "score": round(self.score, 6),
            "threshold": round(self.threshold, 6),
            "rarity": round(self.rarity, 6),
            "stretch": self.stretch,
            "heads": [
                {
                    "layer": each.layer,
                    "head": each.head,
                    "share": round(each.share, 6),
                    "adds": [[token.text, round(token.value, 6)] for token in each.adds],
                }
                for each in self.heads
            ],
        }

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_text(self) -> str:
        """A few lines to read."""
        label = "ALARM" if self.is_alarm else "ordinary"
        lines = [
            f"{label}  {self.score:.2f} (alarm above {self.threshold:.2f})  {_short(self.prompt)}"
        ]
        if self.is_alarm:
            lines.append(f"  at       {_short(self.stretch)}")
            for each in self.heads:
                tokens = " ".join(repr(token.text) for token in each.adds)
                lines.append(
                    f"  {each.name:<7}  {100 * each.share:4.1f} %  more than usual: {tokens}"
                )
        return "\n".join(lines)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."


MOST_SCORE = 1e6  # scores of clipped features are below it
_AGAIN = "fit the guard again with `saccade guard fit`"


@dataclass(frozen=True)
class Guard:
    """Scores prompts and reports those that look injected; `fit_guard` makes one."""

    lenses: Lenses
    readout: Readout
    discriminant: Discriminant
    ordinary: Float[Tensor, " prompt"]
    """The sorted scores of ordinary prompts, each from a fit without it."""
    threshold: float
    false_alarms: float = 0.05
    """Share of ordinary prompts that score above the threshold."""
    source: str = ""
    """Where the ordinary prompts came from."""

    def __post_init__(self) -> None:
        """Refuse an invalid guard: it would call every prompt ordinary."""
        _refuse_not_finite(self)
        window, stride = self.readout.window, self.readout.stride
        if not 1 <= stride <= window:
            raise LensError(
                "the guard is invalid: expected spans of 1 token or more without gaps "
                f"between them, found a window of {window} with a stride of {stride}",
                hint=_AGAIN,
            )

    @property
    def layers(self) -> list[int]:
        """The layers whose heads it reads."""
        return list(self.readout.usual)

    def score_of(self, z: Mapping[int, Float[Tensor, "pos head d_head"]]) -> float:
        """The score of one prompt from its activations: that of its highest-scoring span."""
        return float(self._log_odds(self.readout.points(z)).max())

    def scores(self, prompts: Sequence[str]) -> Float[Tensor, " prompt"]:
        """The score of each prompt, with one forward pass each."""
        encoded = encode_prompts(self.lenses.model, prompts)
        found = torch.zeros(len(prompts), dtype=torch.double)
        for row, z in shallow_rows(self.lenses.model, encoded, layers=self.layers):
            found[row] = self.score_of(z)
        return found

    def verdicts(self, prompts: Sequence[str], *, heads: int = 3, tokens: int = 5) -> list[Verdict]:
        """Score prompts; for alarms, also the heads and tokens that contribute most."""
        encoded = encode_prompts(self.lenses.model, prompts)
        found: dict[int, Verdict] = {}
        for row, z in shallow_rows(self.lenses.model, encoded, layers=self.layers):
            found[row] = self._verdict(prompts[row], encoded[row], z, heads, tokens)
        return [found[row] for row in range(len(prompts))]

    def _verdict(
        self,
        prompt: str,
        ids: Int[Tensor, " pos"],
        z: dict[int, Tensor],
        heads: int,
        tokens: int,
    ) -> Verdict:
        points = self.readout.points(z)
        log_odds = self._log_odds(points)
        highest = int(log_odds.argmax())
        start, stop = points.spans[highest]
        score = float(log_odds[highest])
        above = torch.searchsorted(self.ordinary, torch.tensor(score).double())
        alarms: tuple[HeadAlarm, ...] = ()
        if score > self.threshold:
            activation = {
                layer: each[start:stop].mean(0, keepdim=True) for layer, each in z.items()
            }
            alarms = tuple(
                HeadAlarm(*site, share, self._adds(*site, activation, tokens))
                for site, share in self._parts(points.features[highest])[:heads]
            )
        return Verdict(
            prompt=prompt,
            score=score,
            threshold=self.threshold,
            rarity=1 - int(above) / len(self.ordinary),
            stretch="".join(self.lenses.model.tokens(ids[start:stop])).strip(),
            heads=alarms,
        )

    def _log_odds(self, points: Points) -> Float[Tensor, " point"]:
        """The scores of the spans of a prompt.

        Raises:
            LensError: a score is not finite: the prompt cannot be called ordinary.
        """
        found = self.discriminant.log_odds(points.features)
        # Features are checked too, because an infinite one would be clipped to a finite score.
        if not (points.features.isfinite().all() and found.isfinite().all()):
            raise LensError(
                "the guard cannot score this prompt: the activations of the heads are not finite",
                hint="open the model with a wider dtype (float32), and check its weights with "
                "`saccade model`",
            )
        return found

    def _parts(self, features: Float[Tensor, " feature"]) -> list[tuple[tuple[int, int], float]]:
        """The share of every head in a score, the largest first."""
        shares = self.readout.by_site(self.discriminant.shares(features[None]))[0]
        shares = shares / shares.sum()
        sites = self.readout.sites
        return [(sites[i], float(shares[i])) for i in shares.argsort(descending=True).tolist()]

    def _adds(
        self, layer: int, head: int, activation: dict[int, Tensor], tokens: int
    ) -> tuple[TokenValue, ...]:
        """The tokens that a lens predicts more over a span than in ordinary prompts."""
        lens = self.lenses.by_layer[layer]
        here = activation[layer].to(self.lenses.baseline.device)
        both = lens(torch.cat([here, self.readout.usual[layer][None].to(here)]))[:, head]
        prediction = lens_prediction(both[:1], both[1].log_softmax(-1), top=tokens)
        ids, values = prediction.adds.ids[0].tolist(), prediction.adds.values[0].tolist()
        texts = self.lenses.model.tokens(ids)
        return tuple(
            TokenValue(*each) for each in zip(ids, texts, values, strict=True) if each[2] > 0
        )

    def save(self, path: str | Path) -> None:
        """Write it as a folder; see `saccade.interp.studies.guard.guard_file`."""
        from saccade.interp.studies.guard.guard_file import save_guard

        save_guard(self, path)


def threshold_for(ordinary: Float[Tensor, " prompt"], false_alarms: float) -> float:
    """The score above which a given share of ordinary prompts lies.

    >>> threshold_for(torch.arange(101).double(), 0.05)
    95.0
    """
    return float(ordinary.double().quantile(1 - false_alarms))


def _refuse_not_finite(guard: Guard) -> None:
    of = guard.discriminant
    tensors: dict[str, Tensor] = {
        **{name: getattr(of, name) for name in ("centre", "scale", "mean", "weight")},
        **{f"usual of layer {layer}": each for layer, each in guard.readout.usual.items()},
        **{f"reader of layer {layer}": each for layer, each in guard.readout.reader.items()},
        "ordinary scores": guard.ordinary,
        "threshold": torch.tensor(guard.threshold),
        "bias": torch.tensor(of.bias),
    }
    for name, each in tensors.items():
        if not (each.is_floating_point() and bool(each.isfinite().all())):
            raise LensError(
                f"the guard is invalid: expected finite numbers in its {name}, found others",
                hint=_AGAIN,
            )
    if not (bool((of.scale > 0).all()) and bool(of.weight.any())):
        raise LensError(
            "the guard is invalid: expected scales above 0 and weights that are not all 0",
            hint=_AGAIN,
        )
