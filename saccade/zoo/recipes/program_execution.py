"""Recipe `execute`: what does this program print?

Zaremba and Sutskever, 2014, "Learning to Execute" (https://arxiv.org/abs/1410.4615). The paper
reports character accuracy with teacher forcing, as curves only; we also report exact results,
decoded freely. Our curriculum shifts to the hardest programs over time, and leaves out most of the
easy ones (`ExecuteSettings.focus`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.metrics.sequence_metrics import exact_match, token_accuracy
from saccade.zoo.models.program_executor import ProgramExecutor
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.recipe import Recipe, Translated, TranslateOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.pairs import PairBatch, Pairs, encode_pairs, encode_sources
from saccade.zoo.tasks.programs import Curriculum as Difficulties
from saccade.zoo.tasks.programs import (
    Difficulty,
    Program,
    make_programs,
    program_tokenizer,
    scramble,
)
from saccade.zoo.tasks.vocabulary import EOS, Padded
from saccade.zoo.training.job import Curriculum, Job, LossOut, to_device_of
from saccade.zoo.training.settings import BelowOne, Few, FewOrNone, Many, TrainConfig, Width

Strategy = Literal["baseline", "naive", "mix", "combined"]
TRAINING = TrainConfig(
    steps=62_000,
    minutes=42.0,
    optimiser="adam",
    learning_rate=5e-3,
    clip=1.0,
    schedule="cosine",
    warmup=800,
    validate_steps=2000,
)
# Learning makes progress while the character accuracy (in per cent) rises by this much, from the
# best of the stage before its last two validations to the best of those two. It is measured on
# programs of the stage's own difficulty: on harder ones there is progress long after these are
# solved.
PROGRESS = 1.0
SOLVED = 95.0  # per cent: the stage is solved
EASIER = 200  # programs of that validation
FOCUS = 0.8  # maximum fraction of hard programs; the others prevent forgetting
EASY = ("value", "choice")  # the operations that are learnt first
LEFT_OUT = 0.9  # maximum fraction of easy programs that are left out
# Seeds of programs: those of training are seed, epoch and stage together, and begin beyond these.
VALID_SEED, TEST_SEED, TRAIN_SEED = 1, 2, 1000
SCRAMBLE_SEED = 7


@dataclass(frozen=True, kw_only=True)
class ExecuteSettings:
    """The programs and the model."""

    length: Many = 3
    """Digits of the largest numbers."""
    nesting: Few = 1
    """Number of combined operations."""
    strategy: Strategy = "mix"
    """The curriculum: baseline, naive, mix or combined.

    The paper's best is combined. Without nesting its first stage has so few programs that the model
    overfits to them, and learns little about longer ones.
    """
    focus: FewOrNone = 40
    """Epochs over which training shifts to hard programs; 0: the curriculum alone.

    The fraction of programs of full difficulty, independent of the curriculum, rises from zero to
    four fifths: sums of two digits are learnt from a mix of lengths; then most remaining errors are
    in the longest programs, of which the mix has one in ``length``. Of programs with one operation
    that only print or choose a value, nine in ten are left out in the end: they are a third of all,
    and are solved early.
    """
    is_scrambled: bool = False
    """Programs and results with permuted characters: the control that characters have no
    meaning."""
    programs: Many = 50_000
    """New programs in every epoch."""
    batch_tokens: Many = 2048
    """Characters in a batch, padding included; some sixty programs.

    In the same time small batches learn far more than large ones, which take few steps.
    """
    d_embed: Width = 64
    """Width of a character's embedding."""
    d_hidden: Width = 256
    """Width of a layer."""
    n_layers: Few = 1
    """Number of layers; the paper has two, which learn less in the same time."""
    dropout: BelowOne = 0.0
    """Dropout between layers; with new programs at every step there is no overfitting."""
    n_valid: Many = 2_000
    """Validation programs, also to measure progress."""
    n_test: Many = 5_000
    """Test programs."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class ExecuteRecipe(Recipe):
    """An LSTM reads a program, character by character, and writes its result."""

    system: str = "program_executor"
    task: str = "programs"
    metric: str = "exact"

    def build(self, settings: ExecuteSettings, data: Path | None) -> Job:
        """Train on programs that get harder when progress stops."""
        del data  # programs are generated
        target = Difficulty(settings.length, settings.nesting)
        difficulties = Difficulties(settings.strategy, target)
        valid = held_out(settings, settings.n_valid, part="valid")
        easier = [
            make_programs(
                EASIER, partial(_always, difficulties.at(stage)), seed=VALID_SEED, part="valid"
            )
            for stage in range(difficulties.n_stages - 1)
        ]

        def validate(model: nn.Module) -> dict[str, float]:
            found = accuracies(model, valid, settings)._asdict()
            for stage, programs in enumerate(easier):
                found[f"stage {stage}"] = accuracies(model, programs, settings).characters
            return found

        def batches(epoch: int, stage: int) -> Iterator[PairBatch]:
            seed, focus = settings.training.seed, focus_at(settings, epoch)
            programs = make_programs(
                settings.programs,
                partial(focused, difficulties, stage, FOCUS * focus),
                # Distinct for all epochs and stages of a run, and of the next million runs.
                seed=TRAIN_SEED + (seed * 10_000 + stage) * 1_000_000 + epoch,
                keep=partial(is_kept, LEFT_OUT * focus) if settings.nesting == 1 else None,
            )
            pairs = encode_programs(programs, settings)
            return pairs.batches(tokens=settings.batch_tokens, seed=seed, epoch=epoch)

        return Job(
            model=self.restore(settings, {}),
            batches=Curriculum(
                n_stages=difficulties.n_stages, batches=batches, is_passed=is_learnt
            ),
            loss=_loss,
            validate=validate,
            score="characters",
            is_better="more",
            config=settings.training,
        )

    def restore(self, settings: ExecuteSettings, kept: Mapping[str, Any]) -> ProgramExecutor:
        """The untrained model."""
        del kept  # the vocabulary is the same for all programs
        return ProgramExecutor(
            d_vocab=len(program_tokenizer()),
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            n_layers=settings.n_layers,
            dropout=settings.dropout,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Accuracies on test programs; exact ones by operation, where a program has only one."""
        del data
        settings = run.settings
        programs = held_out(settings, settings.n_test, part="test")
        found = accuracies(run.model, programs, settings)._asdict()
        kinds: dict[str, list[Program]] = {}
        for each in programs if settings.nesting == 1 else ():
            kinds.setdefault(operation_of(each.source), []).append(each)
        for kind, some in sorted(kinds.items()):
            found[f"exact_{kind}"] = accuracies(run.model, some, settings).exact
        return found

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> list[Translated]:
        """What each program prints, by beam search."""
        del data  # the texts come from the user
        model, tokenizer = run.model, program_tokenizer()
        programs = [_written(run.settings, as_program(text)) for text in texts]
        limit = min(options.max_length, max_length(run.settings))
        found = beam(
            model,  # pyright: ignore[reportArgumentType]  a ProgramExecutor is a Stepper
            to_device_of(model, encode_sources(programs, tokenizer)),
            size=options.beam,
            max_length=limit,
            length_penalty=0.0,  # the most likely result, not the longest
        )
        return [Translated(tokenizer.decode(each.ids), each.log_prob) for each in found.best]

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The influence of each character of a program on each output character."""
        del data
        model = run.model
        assert isinstance(model, ProgramExecutor)
        program = as_program(text)
        said = self.translate(run, [text], TranslateOptions(beam=1))[0].text
        pairs = encode_pairs(
            [_written(run.settings, program)], [said], tokenizer=program_tokenizer()
        )
        weights = model.influence_on(to_device_of(model, pairs.batch(torch.tensor([0]))))
        return [
            Trace(
                kind="influence",
                steps=(*said, "</s>"),
                memory=(*program.replace("\n", "\u21b5").replace(" ", "_"), "</s>"),
                weights=weights.cpu(),
                title=f"Influence of each character on each one of {said}",
            )
        ]


def _loss(model: nn.Module, batch: PairBatch) -> LossOut:
    """Mean loss in nats a character."""
    found = token_loss(model(batch), batch.target_out[batch.target_mask])
    return LossOut(found.loss, found.n_tokens)


# Which programs are drawn, and when a stage of the curriculum is over.


def focus_at(settings: ExecuteSettings, epoch: int) -> float:
    """How far training has shifted to hard programs, from 0 to 1."""
    return min(1.0, epoch / settings.focus) if settings.focus else 0.0


def focused(
    difficulties: Difficulties, stage: int, share: float, generator: random.Random
) -> Difficulty:
    """The difficulty of the next program."""
    if share and generator.random() < share:
        return difficulties.target
    return difficulties.draw(stage, generator)


def is_kept(share: float, source: str, generator: random.Random) -> bool:
    """Whether a one-operation program is kept when this fraction of easy ones is left out."""
    return operation_of(source) not in EASY or generator.random() >= share


def is_learnt(scores: Sequence[Mapping[str, float]], stage: int) -> bool:
    """Whether a stage is solved, or its last two validations were hardly better than those before.

    Args:
        scores: Its validations, each with the character accuracy on the stage's own programs.
    """
    found = [each[f"stage {stage}"] for each in scores]
    is_stuck = len(found) > 2 and max(found[-2:]) < max(found[:-2]) + PROGRESS
    return is_stuck or found[-1] >= SOLVED


def held_out(settings: ExecuteSettings, n: int, *, part: str) -> list[Program]:
    """Held-out programs of full difficulty."""
    seed = VALID_SEED if part == "valid" else TEST_SEED
    always = partial(_always, Difficulty(settings.length, settings.nesting))
    return make_programs(n, always, seed=seed, part=part)


def _always(difficulty: Difficulty, generator: random.Random) -> Difficulty:
    del generator
    return difficulty


def encode_programs(programs: Sequence[Program], settings: ExecuteSettings) -> Pairs:
    """Programs and their outputs as encoded pairs."""
    written = partial(_written, settings)
    return encode_pairs(
        [written(each.source) for each in programs],
        [written(each.target) for each in programs],
        tokenizer=program_tokenizer(),
    )


def _written(settings: ExecuteSettings, text: str) -> str:
    return scramble(text, SCRAMBLE_SEED) if settings.is_scrambled else text


class Accuracies(NamedTuple):
    """In per cent."""

    characters: float
    """Accuracy of characters with teacher forcing; EOS does not count."""
    exact: float
    """Accuracy of whole results, decoded freely."""
    nats: float
    """Loss of a character, EOS included."""


@torch.no_grad()
def accuracies(
    model: nn.Module, programs: Sequence[Program], settings: ExecuteSettings
) -> Accuracies:
    """The accuracy of the results."""
    assert isinstance(model, ProgramExecutor)
    pairs = encode_programs(programs, settings)
    tokenizer, limit = program_tokenizer(), max_length(settings)
    n_right = n = n_tokens = 0
    nll, wrote, wanted = 0.0, [], []
    for batch in pairs.in_order(tokens=4 * settings.batch_tokens):
        here: PairBatch = to_device_of(model, batch)
        logits = model(here)
        targets = here.target_out[here.target_mask]
        found = token_loss(logits, targets)
        nll, n_tokens = nll + found.nll.item(), n_tokens + found.n_tokens
        each = token_accuracy(logits.argmax(-1)[None], targets[None], (targets != EOS)[None])
        n_right, n = n_right + each.n_right, n + each.n
        said = greedy(model, Padded(here.source, here.source_mask), max_length=limit)
        wrote += [tokenizer.decode(one.ids) for one in said]
        wanted += [tokenizer.decode(row) for row in here.target_out.tolist()]
    exact = exact_match(wrote, wanted)
    return Accuracies(100 * n_right / max(1, n), 100 * exact.rate, nll / max(1, n_tokens))


def max_length(settings: ExecuteSettings) -> int:
    """More characters than any result has.

    Each operation makes a number longer by two digits at most (for lengths up to 24); there are a
    sign and an end.
    """
    return settings.length + 2 * settings.nesting + 4


def operation_of(source: str) -> str:
    r"""What a program of one operation does.

    >>> operation_of("a=5\nprint((a-7))"), operation_of("print((12*7))")
    ('assignment', 'product')
    """
    for sign, kind in (("for", "loop"), ("if", "choice"), ("=", "assignment"), ("*", "product")):
        if sign in source:
            return kind
    return "sum" if "((" in source else "value"


def as_program(text: str) -> str:
    r"""A program whose lines a user has joined by semicolons, or by backslash and n.

    >>> as_program("a=5;print((a-7))") == as_program(r"a=5\nprint((a-7))")
    True
    """
    program = text.replace("\\n", "\n").replace(";", "\n")
    tokenizer = program_tokenizer()
    if wrong := sorted({each for each in program if each not in tokenizer.vocabulary}):
        raise UsageError(
            f"no program of Learning to Execute has the character {wrong[0]!r}",
            hint="lines such as a=12, for x in range(3):a+=5, and finally print((a-7))",
        )
    return program


RECIPES = (
    ExecuteRecipe(
        name="execute",
        about="Reads a short Python program and writes what it prints, character by character.",
        target=60.0,
        other_metrics={
            "characters": 90.0,
            "exact_loop": None,
            "exact_product": None,
            "exact_sum": None,
        },
        source="Zaremba and Sutskever, 2014, https://arxiv.org/abs/1410.4615",
        note="Exact is free decoding; the paper reports character accuracy with teacher "
        "forcing, as curves only. A loop adds a number up to 12 times.",
        minutes=43.0,
        settings=ExecuteSettings(),
    ),
)
