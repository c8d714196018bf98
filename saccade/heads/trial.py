"""One short run of a model that is being opened, for all the checks to look at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from saccade.heads.hooks import keep_in, on_input, on_output
from saccade.heads.running import base_of, input_device, run_base, trial_ids
from saccade.heads.taps import HeadLayer


@dataclass(frozen=True)
class Trial:
    """What a model does with two short rows of words that differ in the last one only."""

    final: Float[Tensor, "batch pos d_model"]
    """What the base model gives."""
    logits: Float[Tensor, "batch pos d_vocab"]
    """What the whole model gives, in a run of its own."""
    reads: dict[int, Tensor]
    """By layer: what went into the output projection."""
    writes: dict[int, Tensor]
    """By layer: what came out of it."""
    outside: dict[str, Tensor]
    """By path, in order of the modules: outputs of what belongs to no layer."""
    last_block: Tensor
    """What came out of the last layer."""

    def probe(self) -> tuple[float, ...]:
        """The entropy of the prediction at each position of the first row, in nats."""
        log_p = self.logits[0].float().log_softmax(-1)  # [pos, d_vocab]
        entropy = -(log_p.exp() * log_p).sum(-1)
        return tuple(round(float(each), 6) for each in entropy)


@torch.no_grad()
def try_model(hf: PreTrainedModel, layers: Sequence[HeadLayer]) -> Trial:
    """Run a model twice on a short text: its base, watched, and then the whole of it."""
    ids = trial_ids(hf)
    inside = {module for layer in layers for module in layer.block.modules()}
    reads: dict[int, Tensor] = {}
    writes: dict[int, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(on_input(layer.projection, keep_in(reads, layer.index)))
            stack.enter_context(on_output(layer.projection, keep_in(writes, layer.index)))
        leaves = [
            (path, module)
            for path, module in base_of(hf).named_modules()
            if module not in inside and not list(module.children())
        ]
        for path, module in leaves:
            stack.enter_context(on_output(module, keep_in(outputs, path)))
        last: dict[str, Tensor] = {}
        stack.enter_context(on_output(layers[-1].block, keep_in(last, "block")))
        final = run_base(hf, ids)
    logits = hf(input_ids=ids.to(input_device(hf)), use_cache=False).logits
    return Trial(
        final=final,
        logits=logits,
        reads=reads,
        writes=writes,
        outside={path: outputs[path] for path, _ in leaves if path in outputs},
        last_block=last["block"],
    )
