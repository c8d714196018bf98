"""Does a model open, read and measure as it should? What `saccade model --check` runs.

Opening a model already checks its heads (`saccade.interp.heads.checks`). Here its heads are read
once, all in one pass, and the strongest effect is compared with a whole run of the model in which
that head alone is zero: a plain forward pass with one hook, which shares no code with the pass.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import ModelError
from saccade.interp.effects.effects import Part, measure_effects
from saccade.interp.effects.replacement import Replacement
from saccade.interp.heads.capture import TOLERANCE
from saccade.interp.heads.model import LanguageModel

PROMPT = "When Mary and John went to the store, John gave a drink to"
# A KL is a difference of sums over the vocabulary: it is off by more than the states behind it.
SLACK = 100.0
LEAST = 1e-4  # nats: two effects below it are the same


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """What the check of a model measured; seconds are of one run, after the first."""

    prompt: str
    n_tokens: int
    next_token: str
    forward_seconds: float
    read_seconds: float
    """The effects of all heads in one pass."""
    method: str
    """How the heads were read; "whole" where the model's layers cannot be run one by one."""
    head: str
    """The head with the strongest effect."""
    effect: float
    """Its effect in the pass of all heads: KL in nats, the head replaced by zero."""
    whole_run_effect: float
    """The same from a whole run of the model with this head at zero."""
    weight_bytes: int
    peak_bytes: int | None
    """The most memory that the process has used so far; None where the system does not tell."""


@torch.no_grad()
def check_model(model: LanguageModel, prompt: str = PROMPT) -> ModelCheck:
    """Read all heads once, and compare the strongest effect with a whole run of the model.

    Raises:
        ModelError: the two effects differ.
    """
    ids = model.encode(prompt)
    replacement = Replacement.zero(model)
    plain = _log_probs(model, ids)  # also warms up what the first run sets up
    begin = time.perf_counter()
    _log_probs(model, ids)
    forward_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    ((effects,), _) = measure_effects(model, ids, replacement=replacement)
    read_seconds = time.perf_counter() - begin
    part = max(effects.parts, key=lambda each: effects.parts[each].kl)
    found = ModelCheck(
        prompt=prompt,
        n_tokens=ids.shape[1],
        next_token=model.tokens([int(plain.argmax())])[0],
        forward_seconds=forward_seconds,
        read_seconds=read_seconds,
        method=effects.method,
        head=part.name,
        effect=effects.parts[part].kl,
        whole_run_effect=_whole_run_effect(model, ids, part, plain),
        weight_bytes=sum(each.numel() * each.element_size() for each in model.hf.parameters()),
        peak_bytes=peak_bytes(),
    )
    relative = max(SLACK * TOLERANCE.get(model.hf.dtype, 0.0), 1e-2)
    if not math.isclose(found.effect, found.whole_run_effect, rel_tol=relative, abs_tol=LEAST):
        raise ModelError(
            f"{model.name}: the effect of head {found.head} is {found.effect:.4g} in the pass of "
            f"all heads and {found.whole_run_effect:.4g} in a whole run of the model",
            hint="open it with --dtype float32; if they differ there too, please report it",
        )
    return found


def _log_probs(model: LanguageModel, ids: Int[Tensor, "1 pos"]) -> Float[Tensor, " d_vocab"]:
    """The model's own prediction after the last token."""
    logits = model.hf(input_ids=ids, use_cache=False).logits
    return logits[0, -1].double().log_softmax(-1)


def _whole_run_effect(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    part: Part,
    plain: Float[Tensor, " d_vocab"],
) -> float:
    assert part.head is not None, "only single heads were measured"
    at = model.layer(part.layer)
    with at.projection.register_forward_pre_hook(
        _zero_last(part.head * at.d_head, (part.head + 1) * at.d_head)
    ):
        without = _log_probs(model, ids)
    return float((plain.exp() * (plain - without)).sum())


def _zero_last(first: int, end: int) -> Any:
    """A hook before a projection: these features of the last token are zero."""

    def change(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        z = args[0].clone()
        z[..., -1, first:end] = 0.0
        return (z, *args[1:])

    return change


def peak_bytes() -> int | None:
    """The most memory that this process has used; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kilobytes elsewhere
