"""Open a causal language model so that its heads can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from saccade.errors import UsageError
from saccade.interp.heads.capture import input_device, n_embedded, try_model
from saccade.interp.heads.chat import EncodedChat, Messages, encode_messages
from saccade.interp.heads.checks import (
    check_causal,
    check_logits,
    check_sum,
    check_tokenizer,
    check_trial,
    check_values,
    check_weights,
)
from saccade.interp.heads.loading import (
    DEFAULT_MODEL,
    load_model,
    quiet_transformers,
    refuse_other_kinds,
)
from saccade.interp.heads.residual_path import (
    Unembedding,
    find_final_norm,
    find_unembedding,
    follow_to_stream,
)
from saccade.interp.heads.taps import FinalNorm, HeadLayer, find_taps
from saccade.store.fingerprint import fingerprint_model, fingerprint_tokenizer

# How single tokens are shown.

NO_TEXT = "\N{REPLACEMENT CHARACTER}"


def show_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """One string for each id, with its leading space.

    Bytes that are not valid text by themselves are shown as the tokenizer's own piece.
    """
    anchor = tokenizer("a", add_special_tokens=False).input_ids[-1:]
    start = _decode(tokenizer, anchor)
    return [_show(tokenizer, int(id_), anchor, start) for id_ in ids]


def _show(tokenizer: PreTrainedTokenizerBase, id_: int, anchor: list[int], start: str) -> str:
    try:
        piece = tokenizer.convert_ids_to_tokens(id_)
    except (IndexError, OverflowError):
        piece = None
    if piece is None:  # many models have more embedding rows than their tokenizer has tokens
        return f"<{id_}>"
    # SentencePiece drops the space of a first token, so the token is decoded after another one.
    text = _decode(tokenizer, [*anchor, id_])
    text = text.removeprefix(start) if text.startswith(start) else _decode(tokenizer, [id_])
    if text and NO_TEXT not in text:
        return text
    return str(piece)


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(decoded, str), "one list of ids decodes to one string"
    return decoded


@dataclass(frozen=True)
class Encoding:
    """The special tokens that a tokenizer adds to a text, for prompts and corpora alike.

    Many tokenizers put a special token, usually BOS, before a text. A model trained with it
    behaves differently without it: on windows of WikiText-2 the perplexity of Gemma-3-270M is
    three times as high. So every text that a model runs on, windows of a corpus included, starts
    as the tokenizer starts a prompt.

    The first token of a text and special tokens are attention sinks (Xiao et al., 2023,
    https://arxiv.org/abs/2309.17453) with activations unlike all others. `is_text` marks the
    remaining positions: only these enter the statistics of lenses.

    >>> Encoding(prefix=(1,), special=frozenset({1, 2})).is_text(torch.tensor([[1, 7, 2, 7]]))
    tensor([[False,  True, False,  True]])
    """

    prefix: tuple[int, ...] = ()
    """The token ids before every text; none for models without BOS."""
    special: frozenset[int] = frozenset()
    """The ids of all special tokens: BOS, end of text, padding and others."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase | None) -> Encoding:
        """The encoding of a tokenizer, found by trying it."""
        if tokenizer is None:
            return cls()
        special = frozenset(int(each) for each in tokenizer.all_special_ids)
        return cls(prefix=_prefix(tokenizer), special=special)

    @property
    def n_skipped(self) -> int:
        """Number of positions at the start of every text that are left out: at least one."""
        return max(1, len(self.prefix))

    def is_text(self, ids: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
        """True = an ordinary token of the text, neither special nor the first one."""
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, : self.n_skipped] = False
        return mask & ~torch.isin(ids, self._special.to(ids.device))

    def with_prefix(self, ids: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch longer_pos"]:
        """Rows of text, each with the prefix prepended."""
        first = torch.tensor(self.prefix, dtype=ids.dtype, device=ids.device)
        return torch.cat([first.expand(len(ids), -1), ids], dim=1)

    @cached_property
    def _special(self) -> Tensor:
        return torch.tensor(sorted(self.special), dtype=torch.long)


def _prefix(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids before the text's own. Tokens that a tokenizer appends to a text are ignored."""
    whole = [int(each) for each in tokenizer("a").input_ids]
    plain = [int(each) for each in tokenizer("a", add_special_tokens=False).input_ids]
    starts = range(len(whole) - len(plain) + 1) if plain else ()
    start = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
    return tuple(whole[:start])


def text_ids(
    tokenizer: PreTrainedTokenizerBase, encoding: Encoding, text: str
) -> Int[Tensor, "1 pos"]:
    """The ids of one prompt: the prefix, then the text, without an end-of-text token."""
    plain = tokenizer(text, add_special_tokens=False).input_ids
    return encoding.with_prefix(torch.tensor([plain], dtype=torch.long))


CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len")


@final
@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A Hugging Face causal model, unmodified, whose heads have been found and checked.

    Created by `open_model` or `wrap_model`. Layers and heads are counted from 0; a layer keeps its
    number in the model even if others (state-space layers) have no heads.
    """

    name: str
    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    layers: tuple[HeadLayer, ...]
    unembedding: Unembedding
    final_norm: FinalNorm
    probe: tuple[float, ...]
    """Entropies of the model on a few tokens, in nats: detects differences that weights and config
    do not show, such as another version of the model's code."""

    @cached_property
    def fingerprint(self) -> str:
        """Identifies these weights and this config."""
        return fingerprint_model(self.hf)

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        """Identifies this tokenizer."""
        return fingerprint_tokenizer(self._tokenizer())

    @property
    def encoding(self) -> Encoding:
        """The special tokens that the tokenizer adds to a text."""
        return self._encoding

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding.of(self.tokenizer)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The tokens that the tokenizer puts before a prompt, as text; often BOS, or none."""
        ids = self.encoding.prefix
        return tuple(self.tokens(ids)) if ids else ()

    def computes_alike(self, probe: Sequence[float]) -> bool:
        """Whether a stored probe agrees with this model's, up to rounding."""
        # In bfloat16, with 8 bits, a sum over the vocabulary is off by about a hundredth.
        is_exact = self.hf.dtype in (torch.float32, torch.float64)
        slack = 2e-3 if is_exact else 0.1
        pairs = zip(self.probe, probe, strict=False)
        return len(probe) == len(self.probe) and all(abs(a - b) <= slack for a, b in pairs)

    @property
    def n_layers(self) -> int:
        """Number of layers with heads."""
        return len(self.layers)

    @property
    def n_heads(self) -> int:
        """Number of heads in all layers together."""
        return sum(layer.n_heads for layer in self.layers)

    @property
    def d_model(self) -> int:
        """Hidden size."""
        return int(self.unembedding.weight.shape[1])

    @property
    def d_vocab(self) -> int:
        """Vocabulary size of the logits (often larger than the tokenizer's)."""
        return int(self.unembedding.weight.shape[0])

    @property
    def max_positions(self) -> int | None:
        """Context length in tokens; None if the config sets no limit."""
        config = self.hf.config.get_text_config(decoder=True)
        found = [getattr(config, name, None) for name in CONTEXT_NAMES]
        return next((n for n in found if isinstance(n, int) and n > 0), None)

    @property
    def device(self) -> torch.device:
        """The device for the token ids of a text."""
        return input_device(self.hf)

    def layer(self, index: int) -> HeadLayer:
        """The heads of decoder layer ``index``; a `UsageError` if there is no such layer."""
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
                hint="heads are counted from 0 in each layer",
            )

    def encode(self, text: str) -> Int[Tensor, "1 pos"]:
        """The token ids of a prompt, with the special tokens before it (often BOS)."""
        if not text.strip():
            raise UsageError(f"the text is empty: {text!r}", hint="give at least one token")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text is not valid Unicode: it has a lone surrogate at {error.start}",
                hint="give text in UTF-8",
            ) from error
        with quiet_transformers():
            ids = text_ids(self._tokenizer(), self.encoding, text)
        return self._readable(ids)

    def encode_chat(self, messages: Messages) -> EncodedChat:
        """The token ids of messages, through the tokenizer's chat template.

        The opening of the model's answer stands behind them, so that the next token is its first.
        Special tokens in a message's content are read as such and returned as ``injected``
        (`saccade.interp.heads.chat.encode_messages`).

        Args:
            messages: one message of the user, or messages as dicts with "role" and "content".
        """
        with quiet_transformers():
            found = encode_messages(self._tokenizer(), messages, name=self.name)
        return found._replace(ids=self._readable(found.ids))

    def _readable(self, ids: Int[Tensor, "1 pos"]) -> Int[Tensor, "1 pos"]:
        """The ids on the model's device; an error if it cannot read them."""
        self._refuse_beyond(ids)
        n_tokens, limit = ids.shape[1], self.max_positions
        if limit is not None and n_tokens > limit:
            raise UsageError(
                f"the text is too long: it has {n_tokens} tokens, and {self.name} reads at most "
                f"{limit}",
                hint="shorten the text, or read its end only",
            )
        return ids.to(self.device)

    def is_text(self, ids: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
        """True = an ordinary token of the text, neither special nor the first one."""
        return self.encoding.is_text(ids)

    def _refuse_beyond(self, ids: Int[Tensor, "1 pos"]) -> None:
        most = n_embedded(self.hf)
        if ids.shape[1] <= len(self.encoding.prefix):
            raise UsageError("the text has no tokens", hint="give at least one token")
        if int(ids.max()) >= most:
            raise UsageError(
                f"the text contains {self.tokens([int(ids.max())])[0]!r}, which {self.name} cannot "
                f"read: its id is {int(ids.max())}, and the embedding has {most} rows",
                hint="remove it: it is a special token of a larger model",
            )

    def tokens(self, ids: Int[Tensor, " n"] | Sequence[int]) -> list[str]:
        """The text of each token id, with its leading space."""
        wanted = [int(id_) for id_ in ids]
        known = self._shown
        if new := [id_ for id_ in dict.fromkeys(wanted) if id_ not in known]:
            known.update(zip(new, show_tokens(self._tokenizer(), new), strict=True))
        return [known[id_] for id_ in wanted]

    @cached_property
    def _shown(self) -> dict[int, str]:
        """Cache of token texts: the heads of a reading predict largely the same tokens."""
        return {}

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise UsageError(
                f"{self.name} was opened without a tokenizer",
                hint="give wrap_model the tokenizer of the model",
            )
        return self.tokenizer


def open_model(
    name: str | Path | None = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | None = None,
    taps: str | None = None,
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Open a causal language model by hub name, folder or GGUF file; the default needs neither.

    Args:
        name: None for the default, `DEFAULT_MODEL`. The weights of a GGUF file are dequantised,
            and its tokenizer puts BOS before a text if the file's metadata say so.
        dtype: "float32", "bfloat16", "float16", "float64" or "auto" (the checkpoint's). float32 by
            default, or the checkpoint's with a ``device_map``.
        device: "cpu", "cuda", "cuda:1", "mps": where the whole model goes. By default the CPU.
        device_map: where accelerate puts the parts of a model too large for one device.
        taps: a regular expression for the paths of the attention's output projections, where the
            usual rule fails. Whether their inputs are separate heads is then not checked.
        trust_remote_code: run the Python code that comes with the model. Without it such code
            never runs, and there is no prompt.

    Raises:
        ModelError: there is no such model, it is not causal, or its heads cannot be separated.
    """
    name = DEFAULT_MODEL if name is None else name
    hf, tokenizer = load_model(
        name,
        dtype=dtype,
        device=device,
        device_map=device_map,
        trust_remote_code=trust_remote_code,
    )
    return wrap_model(hf, tokenizer, name=str(name), taps=taps)


def wrap_model(
    hf: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    name: str,
    taps: str | None = None,
) -> LanguageModel:
    """Find and check the heads of a model that is already loaded.

    The model itself is not changed, except that it is set to evaluation mode without gradients.
    """
    if getattr(hf.config, "is_encoder_decoder", False):
        refuse_other_kinds(hf.config, name)
    hf.eval().requires_grad_(False)
    with quiet_transformers():
        if tokenizer is not None:
            check_tokenizer(hf, tokenizer)
        check_weights(hf)
        layers = find_taps(hf, taps)
        trial = try_model(hf, layers)
        check_trial(hf, trial)
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
            probe=trial.probe(),
        )
