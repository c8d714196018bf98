"""The recipe `transformer-multi30k`: a small Transformer, German to English."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from saccade.zoo.recipes.translation import TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Few, Many, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

    from saccade.trace.trace import Trace
    from saccade.zoo.recipes.opened import OpenRun

TRAINING = TrainConfig(
    steps=5600,
    minutes=42.0,
    learning_rate=5e-3,
    betas=(0.9, 0.98),
    schedule="linear",
    warmup=1000,
    average_last=5,
    validate_steps=300,
)


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(TranslationSettings):
    """Sizes of the "tiny" Transformer of Wu et al., 2021 (https://arxiv.org/abs/2105.14462).

    Their table 1 has it ahead of larger ones on this data.
    """

    d_model: Width = 128
    """How wide a position is."""
    n_layers: Few = 4
    """Layers of the encoder, and of the decoder."""
    n_heads: Few = 4
    """Heads of each attention."""
    d_hidden: Width = 256
    """How wide the feed-forward networks are inside."""
    dropout: BelowOne = 0.2
    """Of embeddings and of what is added to a position."""
    is_pre_norm: bool = True
    """Norms before the sub-layers; the paper has them after."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """sinusoidal or learned."""
    ties: Literal["all", "target", "none"] = "all"
    """Embeddings that are one with the output's weights: all, target or none."""
    batch_tokens: Many = 2048
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the share of each target that is spread over all tokens."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def make_model(settings: TransformerSettings, n_source: int, n_target: int) -> nn.Module:
    """The model of these settings."""
    from saccade.zoo.models.transformer import Transformer

    return Transformer(
        n_source=n_source,
        n_target=n_target,
        d_model=settings.d_model,
        n_layers=settings.n_layers,
        n_heads=settings.n_heads,
        d_hidden=settings.d_hidden,
        dropout=settings.dropout,
        is_pre_norm=settings.is_pre_norm,
        positions=settings.positions,
        ties=settings.ties,
    )


def trace(run: OpenRun, text: str) -> Sequence[Trace]:
    """Where every head looks while the best translation of a text is said."""
    import torch

    from saccade.zoo.models.transformer import Transformer, head_traces
    from saccade.zoo.recipes.coders import Coders
    from saccade.zoo.recipes.translating import search, search_options
    from saccade.zoo.tasks.vocabulary import BOS, EOS

    coders = Coders.from_kept(run.settings, run.kept)
    source, model = coders.sources([text]), run.model
    assert isinstance(model, Transformer), f"no Transformer but a {type(model).__name__}"
    (best,) = search([model], source, options=search_options(run.settings))
    return head_traces(
        model.look(source, torch.tensor([[BOS, *best.ids]])),
        source=coders.source.labels(source.ids[0].tolist()),
        read=coders.target.labels([BOS, *best.ids]),
        said=coders.target.labels([*best.ids, EOS]),
        title=coders.target.decode(best.ids),
    )


RECIPES = (
    translation_recipe(
        name="transformer-multi30k",
        about="A small Transformer translates German image descriptions into English.",
        system="transformer",
        settings=TransformerSettings(),
        make_model=make_model,
        trace=trace,
        at_least=37.0,
        published=36.5,
        source="bentrevett/pytorch-seq2seq, Transformer of 9.0 M weights",
        note="Theirs is BLEU of lower-cased words by torchtext; ours is sacreBLEU of raw text.",
        minutes=42.0,
    ),
)
