"""Recipes `*-multi30k`: translators from German to English, with and without attention.

- `bahdanau-multi30k`: the first translator with attention.
- `luong-multi30k`: Luong's attentions; settings choose which.
- `gnmt-multi30k`: GNMT with wordpieces, a deep residual stack, attention from its lowest layer.
- `hybrid-multi30k`: words and characters; rare words are read and spelled by letters.
- `transformer-multi30k`: a small Transformer.
- `seq2seq-multi30k`, `seq2seq-multi30k-forward`: sequence to sequence, source reversed and source
  forwards; several runs, an ensemble. Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215),
  table 1: reversed is better than forwards, and several together are better than one. `saccade
  eval` of three runs with different seeds is the third row.
- `encoder-decoder-multi30k`: Cho's RNN encoder-decoder, a translator and a scorer of phrase pairs.
- `continuous-multi30k`: recurrent continuous translation; convolutions fold the source into one
  vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from saccade.trace.trace import Trace
from saccade.zoo.models.bahdanau import BahdanauTranslator
from saccade.zoo.models.continuous_translation import ContinuousTranslation
from saccade.zoo.models.gnmt import Gnmt
from saccade.zoo.models.hybrid_translator import HybridTranslator
from saccade.zoo.models.luong import LuongTranslator, luong_attention
from saccade.zoo.models.rnn_encoder_decoder import RnnEncoderDecoder
from saccade.zoo.models.seq2seq import Seq2Seq
from saccade.zoo.models.transformer import Looks, Transformer, head_traces
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.recipes.translation import (
    RECURRENT,
    AttentionTranslation,
    Tokenizers,
    Translation,
    TranslationSettings,
    search,
    search_options,
)
from saccade.zoo.tasks.vocabulary import BOS, EOS
from saccade.zoo.training.job import to_device_of
from saccade.zoo.training.settings import BelowOne, Few, Many, TrainConfig, Width

# Bahdanau et al. train with Adadelta for five days.
BAHDANAU_TRAINING = replace(RECURRENT, steps=4600, minutes=42.0, precision="float32")
# Luong et al. halve plain SGD's rate after every epoch from the fifth on; a linear schedule does
# too.
LUONG_TRAINING = replace(RECURRENT, steps=5000, minutes=44.0)
# Sutskever et al. clip at 5; they use plain SGD, with which ten epochs would not be enough.
SEQ2SEQ_TRAINING = replace(
    RECURRENT, steps=4000, minutes=40.0, learning_rate=3e-3, precision="float32", average_last=3
)
TRANSFORMER_TRAINING = TrainConfig(
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
class BahdanauSettings(TranslationSettings):
    """Sizes that fit 29,000 sentence pairs, and regularisation against overfitting."""

    n_pieces: Many = 4000
    """Vocabulary size."""
    batch_tokens: Many = 2048
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the fraction of each target that is spread over all tokens."""
    d_embed: Width = 256
    """Embedding dimension."""
    d_hidden: Width = 256
    """Units of each GRU; the encoder has two."""
    dropout: BelowOne = 0.4
    """Dropout on embeddings, on annotations and before the output."""
    output: Literal["maxout", "tanh"] = "tanh"
    """Activation of the deep output: maxout as in the paper, or tanh, of half the size."""
    training: TrainConfig = BAHDANAU_TRAINING
    """Training settings."""


class BahdanauRecipe(AttentionTranslation):
    """A GRU translator with additive attention."""

    def make_model(
        self, settings: BahdanauSettings, n_source: int, n_target: int
    ) -> BahdanauTranslator:
        """The model that the settings describe."""
        return BahdanauTranslator(
            n_source=n_source,
            n_target=n_target,
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            dropout=settings.dropout,
            output=settings.output,
        )


@dataclass(frozen=True, kw_only=True)
class LuongSettings(TranslationSettings):
    """Which of the paper's attentions, and sizes that fit 29,000 sentence pairs."""

    attention: Literal["dot", "general", "concat", "location"] = "general"
    """How a source word is scored: dot, general, concat or location."""
    view: Literal["global", "local-m", "local-p"] = "global"
    """Attended positions: global, or a window: local-m (monotonic), local-p (predictive)."""
    reach: Few = 10
    """Half width of a window, in tokens."""
    is_fed: bool = True
    """Input feeding: the decoder also gets the attentional vector of the previous step."""
    d_hidden: Width = 256
    """Hidden size of an LSTM layer, and embedding dimension."""
    n_layers: Few = 2
    """Layers of the encoder, and of the decoder."""
    dropout: BelowOne = 0.4
    """Dropout on embeddings, between layers, on attended states and before the output."""
    n_pieces: Many = 4000
    """Vocabulary size."""
    batch_tokens: Many = 2048
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the fraction of each target that is spread over all tokens."""
    training: TrainConfig = LUONG_TRAINING
    """Training settings."""


class LuongRecipe(AttentionTranslation):
    """An LSTM translator with one of Luong's attentions."""

    def make_model(self, settings: LuongSettings, n_source: int, n_target: int) -> LuongTranslator:
        """The model that the settings describe."""
        return LuongTranslator(
            n_source=n_source,
            n_target=n_target,
            attention=luong_attention(
                settings.attention, settings.view, d_hidden=settings.d_hidden, reach=settings.reach
            ),
            d_hidden=settings.d_hidden,
            n_layers=settings.n_layers,
            dropout=settings.dropout,
            is_fed=settings.is_fed,
        )


@dataclass(frozen=True, kw_only=True)
class GnmtSettings(TranslationSettings):
    """The settings of GNMT."""

    d_model: Width = 256
    """Hidden size of every layer."""
    n_layers: Few = 4
    """Layers of the encoder, and of the decoder; from the third on they are residual."""
    dropout: BelowOne = 0.3
    """Dropout between layers, never from step to step; 0.2 in the paper, which has far more
    data."""


class GnmtRecipe(AttentionTranslation):
    """Deep residual LSTMs with attention."""

    def make_model(self, settings: GnmtSettings, n_source: int, n_target: int) -> Gnmt:
        """The model that the settings describe."""
        return Gnmt(
            n_source=n_source,
            n_target=n_target,
            d_model=settings.d_model,
            n_layers=settings.n_layers,
            dropout=settings.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class HybridSettings(TranslationSettings):
    """The settings of the hybrid translator."""

    d_model: Width = 256
    """Hidden size of the word level."""
    d_letter: Width = 128
    """Hidden size of the character level."""
    n_layers: Few = 2
    """Layers of the word level's encoder, and of its decoder."""
    dropout: BelowOne = 0.3
    """Dropout between layers, never from step to step; 0.2 in the paper."""


class HybridRecipe(AttentionTranslation):
    """Words with attention, rare words by their letters."""

    def make_model(
        self, settings: HybridSettings, n_source: int, n_target: int
    ) -> HybridTranslator:
        """The model that the settings describe."""
        return HybridTranslator(
            n_source=n_source,
            n_target=n_target,
            d_model=settings.d_model,
            d_letter=settings.d_letter,
            n_layers=settings.n_layers,
            dropout=settings.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(TranslationSettings):
    """Sizes of the "tiny" Transformer of Wu et al., 2021 (https://arxiv.org/abs/2105.14462).

    Their table 1 has it ahead of larger ones on this data.
    """

    d_model: Width = 128
    """Model dimension."""
    n_layers: Few = 4
    """Layers of the encoder, and of the decoder."""
    n_heads: Few = 4
    """Heads of each attention."""
    d_hidden: Width = 256
    """Hidden size of the feed-forward networks."""
    dropout: BelowOne = 0.2
    """Dropout on embeddings and on the output of each sub-layer."""
    is_pre_norm: bool = True
    """Pre-norm; the paper has post-norm."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """sinusoidal or learned."""
    ties: Literal["all", "target", "none"] = "all"
    """Embeddings tied to the output weights: all, target or none."""
    batch_tokens: Many = 2048
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the fraction of each target that is spread over all tokens."""
    training: TrainConfig = TRANSFORMER_TRAINING
    """Training settings."""


class TransformerRecipe(AttentionTranslation):
    """A small Transformer."""

    def make_model(
        self, settings: TransformerSettings, n_source: int, n_target: int
    ) -> Transformer:
        """The model that the settings describe."""
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

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The weights of every head over the best translation of a text."""
        del data  # the sentence comes from the user
        tokenizers = Tokenizers.from_kept(run.settings, run.kept)
        source, model = tokenizers.sources([text]), run.model
        assert isinstance(model, Transformer), f"no Transformer but a {type(model).__name__}"
        (best,) = search([model], source, options=search_options(run.settings))
        target = torch.tensor([[BOS, *best.ids]])
        looks = model.look(to_device_of(model, source), to_device_of(model, target))
        return head_traces(
            Looks(*(weights.cpu() for weights in looks)),
            source=tokenizers.source.labels(source.ids[0].tolist()),
            read=tokenizers.target.labels([BOS, *best.ids]),
            said=tokenizers.target.labels([*best.ids, EOS]),
            title=tokenizers.target.decode(best.ids),
        )


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings(TranslationSettings):
    """The settings of sequence to sequence."""

    d_embed: Width = 256
    """Embedding dimension."""
    d_hidden: Width = 256
    """Units of each LSTM layer."""
    n_layers: Few = 2
    """Layers of the encoder, and of the decoder."""
    dropout: BelowOne = 0.2
    """Dropout between layers, never from step to step."""


class Seq2SeqRecipe(Translation):
    """Sequence to sequence without attention."""

    def make_model(self, settings: Seq2SeqSettings, n_source: int, n_target: int) -> Seq2Seq:
        """The model that the settings describe."""
        return Seq2Seq(
            n_source=n_source,
            n_target=n_target,
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            n_layers=settings.n_layers,
            dropout=settings.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSettings(TranslationSettings):
    """The settings of the RNN encoder-decoder."""

    d_embed: Width = 128
    """Embedding dimension."""
    d_hidden: Width = 384
    """Units of the two GRUs."""
    d_maxout: Width = 192
    """Units of the layer before the softmax."""
    dropout: BelowOne = 0.2
    """Dropout on embeddings and on the layer before the softmax; none in the paper."""


class EncoderDecoderRecipe(Translation):
    """Cho's RNN encoder-decoder: one summary vector, no attention."""

    def make_model(
        self, settings: EncoderDecoderSettings, n_source: int, n_target: int
    ) -> RnnEncoderDecoder:
        """The model that the settings describe."""
        return RnnEncoderDecoder(
            n_source=n_source,
            n_target=n_target,
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            d_maxout=settings.d_maxout,
            dropout=settings.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class ContinuousSettings(TranslationSettings):
    """The settings of recurrent continuous translation."""

    d_model: Width = 256
    """Embedding dimension, also that of the sentence vector and of the RNN."""
    n_kernels: Few = 8
    """Levels of convolution with a kernel of their own, from 2 words up."""
    dropout: BelowOne = 0.2
    """Dropout on embeddings and before the softmax; none in the paper."""


class ContinuousRecipe(Translation):
    """A convolutional sentence model and an RNN, without attention."""

    def make_model(
        self, settings: ContinuousSettings, n_source: int, n_target: int
    ) -> ContinuousTranslation:
        """The model that the settings describe."""
        return ContinuousTranslation(
            n_source=n_source,
            n_target=n_target,
            d_model=settings.d_model,
            n_kernels=settings.n_kernels,
            dropout=settings.dropout,
        )


REVERSED = Seq2SeqSettings(
    is_reversed=True, batch_tokens=2048, n_pieces=4000, training=SEQ2SEQ_TRAINING
)
TABLE = "Sutskever et al. 2014, table 1 (WMT'14 English to French)"
NOTE = "There 12 million sentence pairs and 4 layers of 1000; here 29,000 pairs and 20 minutes."
BLEU_NOTE = "Theirs is BLEU of lower-cased words by torchtext; ours is sacreBLEU of raw text."

RECIPES = (
    BahdanauRecipe(
        name="bahdanau-multi30k",
        about="A GRU translator with additive attention, German to English.",
        system="bahdanau",
        settings=BahdanauSettings(),
        target=31.0,
        published=28.1,
        source="bentrevett/pytorch-seq2seq, packed and masked GRU of 20.5 M weights",
        note=BLEU_NOTE,
        minutes=43.0,
    ),
    LuongRecipe(
        name="luong-multi30k",
        about="An LSTM translator with one of Luong's attentions, German to English.",
        system="luong",
        settings=LuongSettings(),
        published=20.9,
        source="Luong et al. 2015, table 1 (WMT'14 English to German), local-p, general",
        note="There 4.5 million sentence pairs of news; here 29,000 image descriptions.",
        minutes=44.0,
    ),
    GnmtRecipe(
        name="gnmt-multi30k",
        about="GNMT: deep residual LSTMs over wordpieces with attention, German to English.",
        system="gnmt",
        settings=GnmtSettings(
            coding="wordpiece",
            n_pieces=4000,
            batch_tokens=2048,
            smoothing=0.1,
            training=replace(RECURRENT, steps=3200, minutes=44.0),
        ),
        published=24.61,
        source="Wu et al. 2016, table 5 (WMT'14 English to German, wordpieces of 32k)",
        note="There 8 + 8 layers of 1024, 5 million pairs of news; here captions, the other way.",
        minutes=44.0,
    ),
    HybridRecipe(
        name="hybrid-multi30k",
        about="Words with attention, rare words by their letters on both sides, German to English.",
        system="hybrid_translator",
        settings=HybridSettings(
            coding="spelled",
            is_joint=False,
            n_pieces=4000,
            batch_tokens=3000,
            training=replace(RECURRENT, steps=3000, minutes=32.0),
        ),
        published=20.7,
        source="Luong and Manning 2016, table 2 (WMT'15 English to Czech)",
        note="There news into Czech, with 15.8 million pairs; here captions into English.",
        minutes=32.0,
    ),
    TransformerRecipe(
        name="transformer-multi30k",
        about="A small Transformer translates German image descriptions into English.",
        system="transformer",
        settings=TransformerSettings(),
        target=37.0,
        published=36.5,
        source="bentrevett/pytorch-seq2seq, Transformer of 9.0 M weights",
        note=BLEU_NOTE,
        minutes=42.0,
    ),
    Seq2SeqRecipe(
        name="seq2seq-multi30k",
        about="Sequence to sequence without attention, source reversed, German to English.",
        system="seq2seq",
        settings=REVERSED,
        published=30.59,
        source=TABLE,
        note=NOTE,
        minutes=22.0,
    ),
    Seq2SeqRecipe(
        name="seq2seq-multi30k-forward",
        about="The same with the source not reversed: the effect of reversal.",
        system="seq2seq",
        settings=replace(REVERSED, is_reversed=False),
        published=26.17,
        source=TABLE,
        note=NOTE,
        minutes=22.0,
    ),
    EncoderDecoderRecipe(
        name="encoder-decoder-multi30k",
        about="Cho's RNN encoder-decoder: one summary vector, read at every step.",
        system="rnn_encoder_decoder",
        settings=EncoderDecoderSettings(
            n_pieces=4000, batch_tokens=2048, training=replace(RECURRENT, steps=4000, minutes=30.0)
        ),
        note="The paper uses it to score phrase pairs of another translator, not to translate.",
        minutes=30.0,
    ),
    ContinuousRecipe(
        name="continuous-multi30k",
        about="A convolutional sentence model conditions an RNN language model.",
        system="continuous_translation",
        settings=ContinuousSettings(
            n_pieces=6000,
            batch_tokens=2048,
            training=TrainConfig(
                minutes=9.0, learning_rate=1e-3, clip=5.0, schedule="plateau-halving"
            ),
        ),
        note="The paper measures perplexity and rescores; it does not decode with its model.",
        minutes=10.0,
    ),
)
