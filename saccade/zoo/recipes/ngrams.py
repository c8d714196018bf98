"""Recipes `ngram-*`: counting instead of training, with words and with characters.

Interpolated Kneser-Ney (`saccade.zoo.models.ngram`): Kneser and Ney, 1995, with the discounts of
Chen and Goodman, 1998. Each is compared with a network on the same text: `ngram-words` with
`wordlm`, `ngram-characters` with `charlm-shakespeare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.metrics.sequence_metrics import Perplexity, perplexity
from saccade.zoo.models.ngram import NgramLanguageModel
from saccade.zoo.recipes.language_models import (
    TextRecipe,
    as_trained,
    encode_text,
    kept_of,
    labels_of,
)
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Few, Many, Part, TrainConfig


@dataclass(frozen=True, kw_only=True)
class NgramSettings:
    """The n-grams."""

    order: Few
    """The order of the n-grams."""
    is_modified: bool = True
    """Three discounts for each order (Chen and Goodman) instead of one (Kneser and Ney)."""
    valid: Part
    """Fraction of the text that is left out, as in the neural recipe on the same text."""
    n_words: Many = 10_000
    """Vocabulary size: the most frequent words; all others are <unk>."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """Nothing is trained."""


@dataclass(frozen=True, kw_only=True)
class NgramRecipe(TextRecipe):
    """An n-gram model, counted from the training text; nothing is trained."""

    system: str = "ngram"
    minutes: float = 0.5

    def build(self, settings: NgramSettings, data: Path | None) -> Job:
        """Count the training text."""
        corpus = self.read_corpus(settings, data)
        model = NgramLanguageModel.count(
            corpus.train,
            order=settings.order,
            d_vocab=len(corpus.vocabulary),
            is_modified=settings.is_modified,
        )

        def validate(counted: nn.Module) -> dict[str, float]:
            found = _perplexity_of(counted, corpus.valid)
            return {"nats": found.nats, "perplexity": found.perplexity}

        return Job(
            model=model,
            batches=lambda _: [],
            loss=_no_loss,
            validate=validate,
            score="nats",
            is_better="less",
            config=settings.training,
            kept={**kept_of(corpus), "sizes": list(model.sizes)},
        )

    def restore(self, settings: NgramSettings, kept: Mapping[str, Any]) -> NgramLanguageModel:
        """The model without its counts."""
        del settings  # the counts are restored with the weights
        return NgramLanguageModel(d_vocab=len(kept["words"]), sizes=kept["sizes"])

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Nats, bits and perplexity of a symbol of the test text."""
        corpus = self.read_corpus(run.settings, data)
        found = _perplexity_of(run.model, as_trained(run.kept, corpus))
        return {"nats": found.nats, "bits": found.bits, "perplexity": found.perplexity}

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The contribution of each n-gram order to each symbol's probability."""
        del data
        model = run.model
        assert isinstance(model, NgramLanguageModel)
        ids = encode_text(run.kept, text)
        parts = model.parts_of(to_device_of(model, ids[None]))[0].cpu()  # [pos, level]
        return [
            Trace(
                kind="levels",
                steps=tuple(labels_of(run.kept, ids)),
                memory=("none", *(f"{length}-gram" for length in range(1, model.order + 1))),
                weights=parts / parts.sum(-1, keepdim=True),
                title="Contribution of the n-grams of each order to each symbol's probability",
                meta={"probability": [round(p, 6) for p in parts.sum(-1).tolist()]},
            )
        ]


def _no_loss(*_: object) -> LossOut:
    raise UsageError(
        "an n-gram model is counted, not trained", hint="leave epochs, steps and minutes at 0"
    )


def _perplexity_of(model: nn.Module, ids: Int[Tensor, " token"]) -> Perplexity:
    """Log-probability of each symbol of a text but the first, as for a neural model."""
    assert isinstance(model, NgramLanguageModel)
    log_probs = model.log_probs_of(to_device_of(model, ids[None]))[0, 1:]
    return perplexity(-log_probs.sum().item(), len(ids) - 1)


RECIPES = (
    NgramRecipe(
        name="ngram-words",
        about="Counts words: interpolated Kneser-Ney of 16 books.",
        task="gutenberg",
        metric="perplexity",
        settings=NgramSettings(order=4, valid=0.05),
        note="Compare with `wordlm` on the same words.",
    ),
    NgramRecipe(
        name="ngram-characters",
        about="Counts characters: interpolated Kneser-Ney of Shakespeare's plays.",
        task="tinyshakespeare",
        metric="nats",
        settings=NgramSettings(order=7, valid=0.02),
        note="Compare with `charlm-shakespeare` on the same text.",
    ),
)
