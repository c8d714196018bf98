"""Generate a text, and tell which heads promote each token that is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from saccade.errors import UsageError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.effects import part_changes
from saccade.interp.effects.joined_pass import CopyRun, Method
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target, effects_on_targets
from saccade.interp.lenses.top_tokens import TokenValue, plain
from saccade.interp.readings.prompt import PromptSpec, encode_spec

if TYPE_CHECKING:
    from saccade.interp.effects.parts import Change
    from saccade.interp.heads.chat import Messages
    from saccade.interp.heads.model import LanguageModel


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadShare:
    """The effect of one head on the logit of a token, above the mean of all logits."""

    layer: int
    head: int
    effect: float

    @property
    def name(self) -> str:
        """``29.0`` is head 0 of layer 29."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class GeneratedToken:
    """A token that the model writes, and what each head does for it."""

    position: int
    """Where it stands in the text, counted from the start of the prompt."""
    token: TokenValue
    """With the probability that the model gives it, before any temperature."""
    is_end: bool
    """Whether it ends the text; its own text is then no part of it."""
    heads: tuple[HeadShare, ...]
    """All heads, in order of depth."""

    def promoted_by(self, n: int = 3) -> tuple[HeadShare, ...]:
        """The heads without which the token's logit falls most."""
        ranked = sorted(self.heads, key=lambda each: -each.effect)
        return tuple(each for each in ranked[:n] if each.effect > 0)

    def opposed_by(self, n: int = 3) -> tuple[HeadShare, ...]:
        """The heads without which the token's logit rises most."""
        ranked = sorted(self.heads, key=lambda each: each.effect)
        return tuple(each for each in ranked[:n] if each.effect < 0)

    def to_dict(self, *, heads: int = 3) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, with so many heads of each sign."""
        return {
            "position": self.position,
            **plain(self.token),
            "is_end": self.is_end,
            "promoted_by": [plain(each) for each in self.promoted_by(heads)],
            "opposed_by": [plain(each) for each in self.opposed_by(heads)],
        }


# More parameters than the house style has: each is one choice of how the text goes on.
def generate(
    model: LanguageModel,
    prompt: str | Messages,
    *,
    tokens: int = 20,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    replacement: Replacement | None = None,
    method: Method = "joined",
) -> Iterator[GeneratedToken]:
    """Continue a prompt token by token, each with the exact effects of all heads on it.

    The effects are those of `measure_effects` on the text so far, for the token that is written.
    They cost one pass a token: the text before is in a cache, and changed copies of the last token
    join the pass that the generation needs anyway.

    Args:
        prompt: a text, or messages for the chat template.
        tokens: how many at most; the text ends at the model's end of text.
        temperature: 0 for the likeliest token, else what the logits are divided by.
        top_p: draw from the smallest set of tokens with this probability (Holtzman et al., 2020,
            https://arxiv.org/abs/1904.09751).
        replacement: what replaces a head; by default its mean (`Replacement.usual`).
        method: the first method of `run_copies` to try.

    Raises:
        UsageError: the prompt is empty, or the model has no room for so many tokens.
    """
    if not temperature >= 0:
        raise UsageError(f"no temperature {temperature}", hint="give 0 or more; 0 takes the best")
    if not 0 < top_p <= 1:
        raise UsageError(f"no probability {top_p} of the nucleus", hint="give more than 0, up to 1")
    ids = encode_spec(model, PromptSpec.of(prompt)).ids
    room = None if model.max_positions is None else model.max_positions - ids.shape[1]
    if tokens < 0 or (room is not None and tokens > room):
        raise UsageError(
            f"cannot write {tokens} tokens: the prompt has {ids.shape[1]}, and {model.name} reads "
            f"at most {model.max_positions}",
            hint=f"ask for at most {room}" if room is not None else "ask for 0 or more",
        )
    values = Replacement.usual(model) if replacement is None else replacement
    # Checked here, not when the first token is asked for.
    return _generate(model, ids, tokens, _Choice(temperature, top_p, seed), values, method)


@torch.no_grad()
def _generate(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    n_tokens: int,
    choice: _Choice,
    replacement: Replacement,
    method: Method,
) -> Iterator[GeneratedToken]:
    parts, changes = part_changes(model, replacement.at_last())
    ends = end_tokens(model)
    text = _GrowingText(model, ids, changes, method)
    for _ in range(n_tokens):
        run = text.run()
        logits = model.unembedding.logits(run.captured.final[0, 0]).float()
        token = choice(logits)
        effects = effects_on_targets(model, run, [Target(token)])[0].tolist()
        yield GeneratedToken(
            position=text.ids.shape[1],
            token=TokenValue(token, model.tokens([token])[0], float(logits.softmax(-1)[token])),
            is_end=token in ends,
            heads=tuple(
                HeadShare(layer=part.layer, head=part.head or 0, effect=effect)
                for part, effect in zip(parts, effects, strict=True)
            ),
        )
        if token in ends:
            return
        text.append(token)


def end_tokens(model: LanguageModel) -> frozenset[int]:
    """The tokens at which the model's own generation stops."""
    config = getattr(model.hf, "generation_config", None)
    found = None if config is None else config.eos_token_id
    if found is None:
        found = model.hf.config.get_text_config(decoder=True).eos_token_id
    if found is None:
        return frozenset()
    return frozenset(found if isinstance(found, list | tuple) else [found])


class _GrowingText:
    """A text whose last token is run again and again with the same changes."""

    def __init__(
        self, model: LanguageModel, ids: Tensor, changes: list[Change], method: Method
    ) -> None:
        self.model, self.ids, self._changes = model, ids, changes
        self._method: Method = method
        # Without the config: a layer with a sliding window would drop keys for those of copies.
        self._cache = DynamicCache()

    def run(self) -> CopyRun:
        """The last token, and its copies."""
        cache = self._cache if self._method == "joined" else None
        run = run_copies(self.model, self.ids, self._changes, method=self._method, cache=cache)
        self._method = run.method  # what has failed once is not tried again
        return run

    def append(self, token: int) -> None:
        """Make the text one token longer."""
        self.ids = torch.cat([self.ids, self.ids.new_tensor([[token]])], 1)


class _Choice:
    """Chooses the next token."""

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        self._temperature, self._top_p = temperature, top_p
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Float[Tensor, " d_vocab"]) -> int:
        if self._temperature == 0:
            return int(logits.argmax())
        # Drawn on the CPU, so that a text does not depend on the device.
        p, order = (logits.cpu() / self._temperature).softmax(-1).sort(descending=True)
        before = p.cumsum(-1) - p
        p[before >= self._top_p] = 0  # the first token is always kept
        return int(order[torch.multinomial(p, 1, generator=self._generator)])
