"""Open a causal language model so that its heads can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from saccade.errors import UsageError
from saccade.heads.checks import check_causal, check_logits, check_sum, check_values
from saccade.heads.default import DEFAULT_MODEL
from saccade.heads.loading import load_model, refuse_other_kinds
from saccade.heads.norms import FinalNorm
from saccade.heads.quiet import quiet_transformers
from saccade.heads.running import input_device
from saccade.heads.stream import find_final_norm, follow_to_stream
from saccade.heads.taps import HeadLayer, find_taps
from saccade.heads.trial import try_model
from saccade.heads.unembed import Unembedding, find_unembedding
from saccade.heads.words import show_words
from saccade.store.fingerprint import fingerprint_model, fingerprint_tokenizer

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len")


@final
@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A Hugging Face causal model, unmodified, whose heads have been found and checked.

    Made by `open_model` or `wrap_model`. Layers and heads are counted from 0; a layer keeps the
    number it has in the model even where others (state-space layers) have no heads.
    """

    name: str
    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    layers: tuple[HeadLayer, ...]
    unembedding: Unembedding
    final_norm: FinalNorm

    @cached_property
    def fingerprint(self) -> str:
        """Tells these weights from any others."""
        return fingerprint_model(self.hf)

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        """Tells this tokenizer from any other."""
        return fingerprint_tokenizer(self._tokenizer())

    @property
    def n_layers(self) -> int:
        """How many layers have heads."""
        return len(self.layers)

    @property
    def n_heads(self) -> int:
        """How many heads there are in all layers together."""
        return sum(layer.n_heads for layer in self.layers)

    @property
    def d_model(self) -> int:
        """Width of the final state."""
        return int(self.unembedding.weight.shape[1])

    @property
    def d_vocab(self) -> int:
        """How many words the logits are for (often more than the tokenizer has)."""
        return int(self.unembedding.weight.shape[0])

    @property
    def max_positions(self) -> int | None:
        """The longest text the model was made for; None where its config sets no limit."""
        config = self.hf.config.get_text_config(decoder=True)
        found = [getattr(config, name, None) for name in CONTEXT_NAMES]
        return next((n for n in found if isinstance(n, int) and n > 0), None)

    @property
    def device(self) -> torch.device:
        """Where the ids of a text have to be."""
        return input_device(self.hf)

    def layer(self, index: int) -> HeadLayer:
        """The heads of decoder layer ``index``; a `UsageError` where there is no such layer."""
        for layer in self.layers:
            if layer.index == index:
                return layer
        indices = [layer.index for layer in self.layers]
        whole = indices == list(range(indices[0], indices[-1] + 1))
        valid = f"{indices[0]}-{indices[-1]}" if whole else ", ".join(map(str, indices))
        raise UsageError(
            f"no layer {index}: {self.name} has heads in layers {valid}",
            hint="layers are counted from 0",
        )

    def check_head(self, layer: int, head: int) -> None:
        """Raise a `UsageError` unless there is such a head."""
        n_heads = self.layer(layer).n_heads
        if not 0 <= head < n_heads:
            raise UsageError(
                f"no head {head} in layer {layer}: {self.name} has heads 0-{n_heads - 1} there",
                hint="heads are counted from 0, in each layer anew",
            )

    def encode(self, text: str) -> Int[Tensor, "1 pos"]:
        """The token ids of a text, as the tokenizer begins one (with BOS where it has it)."""
        if not text.strip():
            raise UsageError(f"the text is empty: {text!r}", hint="give at least one word")
        with quiet_transformers():
            ids = self._tokenizer()(text, return_tensors="pt").input_ids
        n_tokens, limit = ids.shape[1], self.max_positions
        if limit is not None and n_tokens > limit:
            raise UsageError(
                f"the text is too long: it has {n_tokens} tokens, and {self.name} reads at most "
                f"{limit}",
                hint="shorten the text, or read its end only",
            )
        return ids.to(self.device)

    def words(self, ids: Int[Tensor, " n"] | Sequence[int]) -> list[str]:
        """One string to show for each token id, with its leading space."""
        wanted = [int(id_) for id_ in ids]
        known = self._shown
        if new := [id_ for id_ in dict.fromkeys(wanted) if id_ not in known]:
            known.update(zip(new, show_words(self._tokenizer(), new), strict=True))
        return [known[id_] for id_ in wanted]

    @cached_property
    def _shown(self) -> dict[int, str]:
        """Words that were shown before: all heads of a reading say much the same ones."""
        return {}

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise UsageError(
                f"{self.name} was opened without a tokenizer",
                hint="give wrap_model the tokenizer of the model",
            )
        return self.tokenizer


def open_model(
    name: str | Path = DEFAULT_MODEL,
    *,
    dtype: str | None = None,
    device_map: str | None = None,
    taps: str | None = None,
) -> LanguageModel:
    """Open a causal language model by hub name or folder; the default needs neither.

    Args:
        dtype: "float32", "bfloat16", "float16" or "auto" (the checkpoint's). float32 by default,
            or the checkpoint's with a ``device_map``.
        device_map: where accelerate should put the parts of a model too large for one device.
        taps: a regular expression for the paths of the attention's output projections, where the
            usual rule fails. Whether their inputs are separate heads is then taken on trust.

    Raises:
        ModelError: there is no such model, it is not causal, or its heads cannot be told apart.
    """
    hf, tokenizer = load_model(name, dtype=dtype, device_map=device_map)
    return wrap_model(hf, tokenizer, name=str(name), taps=taps)


def wrap_model(
    hf: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    name: str,
    taps: str | None = None,
) -> LanguageModel:
    """Find and check the heads of a model that is already loaded.

    The model itself stays as it is, but for being set to evaluation without gradients.
    """
    if getattr(hf.config, "is_encoder_decoder", False):
        refuse_other_kinds(hf.config, name)
    hf.eval().requires_grad_(False)
    with quiet_transformers():
        layers = find_taps(hf, taps)
        trial = try_model(hf, layers)
        check_causal(hf, trial)
        check_sum(layers, trial)
        if taps is None:
            check_values(hf, layers)
        unembedding = find_unembedding(hf, trial)
        check_logits(hf, unembedding, trial)
        return LanguageModel(
            name=name,
            hf=hf,
            tokenizer=tokenizer,
            layers=follow_to_stream(hf, layers),
            unembedding=unembedding,
            final_norm=find_final_norm(hf, trial),
        )
