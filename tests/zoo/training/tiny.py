"""A recipe small enough for tests: say a word backwards, by attention from place to place.

It is a plugin: `--plugin tests/zoo/training/tiny.py` makes it known to a command in a process of
its own. In the environment, TINY_STOP is a step before which it waits to be killed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.trace.trace import Trace
from saccade.zoo.recipes.recipe import Recipe, Translated, register_recipe
from saccade.zoo.training.job import Job, LossOut
from saccade.zoo.training.settings import TrainConfig

TRAINING = TrainConfig(epochs=3, learning_rate=0.02, log_steps=5)


@dataclass(frozen=True, kw_only=True)
class TinySettings:
    """Sizes are distinct primes."""

    letters: str = "abcdefg"
    """The alphabet."""
    length: Annotated[int, Ge(1)] = 5
    """Of the longest word."""
    d_model: Annotated[int, Ge(1)] = 13
    """Width of an embedding."""
    dropout: Annotated[float, Ge(0), Le(1)] = 0.1
    """Of what is read."""
    rows: Annotated[int, Ge(1)] = 11
    """Words in a batch."""
    batches: Annotated[int, Ge(1)] = 17
    """Batches in an epoch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


class Words(NamedTuple):
    letters: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, " batch"]


class Mirror(nn.Module):
    """Reads, for each place of the answer, from a place of the word."""

    def __init__(self, *, n_letters: int, length: int, d_model: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_letters, d_model)
        self.queries = nn.Embedding((length + 1) * length, d_model)  # by length and place
        self.keys = nn.Embedding(length, d_model)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, n_letters)

    def forward(self, words: Words) -> tuple[Float[Tensor, "b q v"], Float[Tensor, "b q k"]]:
        length = words.letters.shape[1]
        place = torch.arange(length)
        queries = self.queries(words.lengths[:, None] * length + place)  # [batch, pos, d_model]
        scores = queries @ self.keys(place).T
        weights = scores.masked_fill(~is_letter(words)[:, None], float("-inf")).softmax(-1)
        return self.output(self.dropout(weights @ self.embed(words.letters))), weights


def is_letter(words: Words) -> Tensor:
    return torch.arange(words.letters.shape[1]) < words.lengths[:, None]


def draw(settings: TinySettings, seed: int) -> Words:
    chance = torch.Generator().manual_seed(seed)
    shape = (settings.rows, settings.length)
    letters = torch.randint(len(settings.letters), shape, generator=chance)
    lengths = torch.randint(1, settings.length + 1, (settings.rows,), generator=chance)
    return Words(letters, lengths)


def answers(words: Words) -> Tensor:
    place = words.lengths[:, None] - 1 - torch.arange(words.letters.shape[1])
    return words.letters.gather(1, place.clamp_min(0))


def loss(model: nn.Module, words: Words) -> LossOut:
    real = is_letter(words)
    logits = model(words)[0][real]
    nll = functional.cross_entropy(logits, answers(words)[real])
    return LossOut(nll, n=int(real.sum()), logged={"right": right(model, words)})


def right(model: nn.Module, words: Words) -> Tensor:
    real = is_letter(words)
    return (model(words)[0].argmax(-1) == answers(words))[real].float().mean()


def wait_to_be_killed(model: nn.Module, step: int) -> None:
    sys.stderr.write(f"step {step}\n")
    sys.stderr.flush()
    if os.environ.get("TINY_STOP") == str(step):
        time.sleep(60)


def encode(run, words: Sequence[str]) -> Words:
    rows = [[run.kept["letters"].index(c) for c in word] for word in words]
    padded = [row + [0] * (run.settings.length - len(row)) for row in rows]
    return Words(torch.tensor(padded), torch.tensor([len(row) for row in rows]))


@dataclass(frozen=True, kw_only=True)
class TinyMirror(Recipe):
    """Trained, evaluated, traced, translated with and sampled from in no time."""

    def build(self, settings, data) -> Job:
        held_out = draw(settings, seed=-1)

        def validate(model):
            torch.rand(3)  # whatever is drawn here must not change the training
            return {
                "nll": float(loss(model, held_out).loss),
                "right": float(right(model, held_out)),
            }

        kept = {"letters": settings.letters}
        seed = settings.training.seed * 1_000_003
        return Job(
            model=self.restore(settings, kept),
            batches=lambda epoch: [
                draw(settings, seed + epoch * settings.batches + i) for i in range(settings.batches)
            ],
            loss=loss,
            validate=validate,
            score="nll",
            is_better="less",
            config=settings.training,
            kept=kept,
            before_step=wait_to_be_killed if "TINY_STOP" in os.environ else None,
        )

    def restore(self, settings, kept) -> Mirror:
        return Mirror(
            n_letters=len(kept["letters"]),
            length=settings.length,
            d_model=settings.d_model,
            dropout=settings.dropout,
        )

    def evaluate(self, run, data) -> dict[str, float]:
        words = draw(run.settings, seed=-2)
        together = torch.stack([model(words)[0].softmax(-1) for model in run.models]).mean(0)
        real = is_letter(words)
        found = (together.argmax(-1) == answers(words))[real]
        return {"right": float(found.float().mean()), "letters": float(real.sum())}

    def translate(self, run, sentences, options, *, data=None) -> list[Translated]:
        words = encode(run, sentences)
        log_probs, best = run.model(words)[0].log_softmax(-1).max(-1)
        texts = ["".join(run.kept["letters"][i] for i in row) for row in best.tolist()]
        return [
            Translated(text[: len(word)], float(row[: len(word)].sum()))
            for text, word, row in zip(texts, sentences, log_probs, strict=True)
        ]

    def trace(self, run, text, *, data=None) -> list[Trace]:
        weights = run.model(encode(run, [text]))[1][0, : len(text), : len(text)]
        said = self.translate(run, [text], None)[0].text
        return [Trace(kind="attention", steps=tuple(said), memory=tuple(text), weights=weights)]

    def sample(self, run, options) -> str:
        chance = random.Random(options.seed)
        letters = (chance.choice(run.kept["letters"]) for _ in range(options.length))
        return options.prompt + "".join(letters)


TINY = TinyMirror(
    name="tiny-mirror",
    about="Says a word backwards.",
    system="none",
    task="words drawn at random",
    metric="right",
    target=0.9,
    published=1.0,
    source="a mirror",
    note="Ours is younger.",
    minutes=0.01,
    settings=TinySettings(),
)
register_recipe(TINY)
