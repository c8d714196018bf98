"""Making, evaluating and watching an n-gram model."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.metrics.sequence_metrics import Perplexity, perplexity
from saccade.zoo.models.ngram import NgramLanguageModel
from saccade.zoo.recipes.language_modelling import as_trained, encode_text, kept_of, labels_of
from saccade.zoo.recipes.ngram import NgramSettings
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.tasks.text import TextCorpus
from saccade.zoo.training.job import Job, LossOut


def ngram_job(settings: NgramSettings, corpus: TextCorpus) -> Job:
    """Count the training text; there is nothing left to train."""
    model = NgramLanguageModel.count(
        corpus.train,
        order=settings.order,
        d_vocab=len(corpus.vocabulary),
        is_modified=settings.is_modified,
    )

    def validate(counted: nn.Module) -> dict[str, float]:
        assert isinstance(counted, NgramLanguageModel)
        found = text_perplexity(counted, corpus.valid)
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


def _no_loss(*_: object) -> LossOut:
    raise UsageError(
        "an n-gram model is counted, not trained", hint="leave epochs, steps and minutes at 0"
    )


def text_perplexity(model: NgramLanguageModel, ids: Int[Tensor, " token"]) -> Perplexity:
    """Of a text, each symbol but the first, as for a neural model."""
    return perplexity(-model.log_probs_of(ids[None])[0, 1:].sum().item(), len(ids) - 1)


def evaluate_ngram(run: OpenRun, corpus: TextCorpus) -> dict[str, float]:
    """Nats, bits and perplexity of a symbol of the test text."""
    model = run.model
    assert isinstance(model, NgramLanguageModel)
    found = text_perplexity(model, as_trained(run.kept, corpus))
    return {"nats": found.nats, "bits": found.bits, "perplexity": found.perplexity}


def trace_levels(run: OpenRun, text: str) -> list[Trace]:
    """Which length of context each symbol's probability comes from."""
    model = run.model
    assert isinstance(model, NgramLanguageModel)
    ids = encode_text(run.kept, text)
    parts = model.parts_of(ids[None])[0]  # [pos, level]
    return [
        Trace(
            kind="levels",
            steps=tuple(labels_of(run.kept, ids)),
            memory=("none", *(f"{length}-gram" for length in range(1, model.order + 1))),
            weights=parts / parts.sum(-1, keepdim=True),
            title="What the n-grams of each length contribute to each symbol's probability",
            meta={"probability": [round(p, 6) for p in parts.sum(-1).tolist()]},
        )
    ]
