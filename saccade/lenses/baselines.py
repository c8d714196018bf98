"""Lenses to compare others with: the logit lenses as they are, tuned lenses solved from a text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.lenses.collection import Lenses, Made
from saccade.lenses.corpus import Corpus
from saccade.lenses.lens import Lens, lens_kind
from saccade.lenses.logit_lens import HeadLogitLens, LogitLens
from saccade.lenses.tuned_lens import TunedLens, solve_tuned

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

PARAMETERLESS = (HeadLogitLens.kind, LogitLens.kind)
# Tokens at once while a text is read: what is held of them is some hundred kB a token.
BATCH_TOKENS = 2048


def has_direct_path(model: LanguageModel) -> bool:
    """Whether what every head writes is added to the stream that ends in the words."""
    return all(layer.reaches_stream for layer in model.layers)


def default_kinds(model: LanguageModel) -> tuple[str, ...]:
    """The kinds that any lenses of this model can be compared with at no cost of fitting."""
    return PARAMETERLESS if has_direct_path(model) else (LogitLens.kind,)


def baseline_lenses(model: LanguageModel, kind: str) -> Lenses:
    """The lenses of a kind that has nothing to learn, for every layer of a model.

    Args:
        kind: "logit" or "logit-head"; a kind of one's own if it has no parameters.
    """
    made = lens_kind(kind)
    if made.site == "direct" and not has_direct_path(model):
        raise ModelError(
            f"the heads of {model.name} have no direct path to the words: its blocks norm the "
            "stream itself",
            hint=f"leave out the {kind} lens, or compare with the {LogitLens.kind} lens",
        )
    by_layer: dict[int, Lens] = {at.index: made.start(model, at.index) for at in model.layers}
    if any(True for lens in by_layer.values() for _ in lens.parameters()):
        raise UsageError(
            f"a {kind} lens has to be fitted before it can be compared with",
            hint=f"these need no fitting: {', '.join(PARAMETERLESS)}",
        )
    return _bound(model, by_layer, corpus=None, kind=kind, method="none")


def tuned_lenses(model: LanguageModel, corpus: Corpus, *, ridge: float = 1e-4) -> Lenses:
    """Tuned lenses solved from one pass over a text (see `solve_tuned`)."""
    rows = max(1, BATCH_TOKENS // corpus.windows.shape[1])
    by_layer = solve_tuned(model, corpus.windows.split(rows), ridge=ridge)
    return _bound(model, by_layer, corpus=corpus, kind=TunedLens.kind, method="closed-form")


def _bound(
    model: LanguageModel,
    by_layer: Mapping[int, Lens],
    *,
    corpus: Corpus | None,
    kind: str,
    method: str,
) -> Lenses:
    made = Made(
        model=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint if model.tokenizer is not None else "",
        kind=kind,
        method=method,
        objective="squared-error" if corpus is not None else "none",
        corpus=corpus.source if corpus is not None else "",
        corpus_fingerprint=corpus.fingerprint if corpus is not None else "",
        n_tokens=corpus.n_tokens if corpus is not None else 0,
        prefix=model.prefix,
        probe=model.probe,
    )
    return Lenses(model=model, by_layer=dict(by_layer), constant=_uniform(model), made=made)


def _uniform(model: LanguageModel) -> Float[Tensor, " d_vocab"]:
    # No text was looked at for its words, so no word is more likely than another.
    return torch.full((model.d_vocab,), -math.log(model.d_vocab)).to(
        model.unembedding.weight.device
    )
