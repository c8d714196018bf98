"""Training, evaluating, using and watching a program executor."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.metrics.sequence_metrics import exact_match, token_accuracy
from saccade.zoo.models.program_executor import ProgramExecutor
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.execute import ExecuteSettings
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.options import Translated, TranslateOptions
from saccade.zoo.tasks.curricula import Curriculum as Difficulties
from saccade.zoo.tasks.curricula import Difficulty
from saccade.zoo.tasks.pairs import PairBatch, Pairs, encode_pairs, encode_sources
from saccade.zoo.tasks.programs import Program, make_programs, program_coder, scramble
from saccade.zoo.tasks.vocabulary import EOS, Padded
from saccade.zoo.training.job import Curriculum, Job, LossOut, moved

# Learning makes progress while the share of right characters (of 100) rises by this much, from the
# best of the stage before its last two validations to the best of those two. It is the share on
# programs as hard as the stage's own: on harder ones there is progress long after these are solved.
PROGRESS = 1.0
SOLVED = 95.0  # of 100: nothing is left to wait for
EASIER = 200  # programs to see that on
FOCUS = 0.8  # of programs at most; from the others nothing is forgotten
EASY = ("value", "choice")  # what is learnt long before all else
LEFT_OUT = 0.9  # of easy programs at most
# Seeds of programs: those of training are seed, epoch and stage together, and begin beyond these.
VALID_SEED, TEST_SEED, TRAIN_SEED = 1, 2, 1000
SCRAMBLE_SEED = 7


class Accuracies(NamedTuple):
    """Of 100."""

    characters: float
    """Of those printed, each after the right ones before it; the end is not counted."""
    exact: float
    """Of results, written without help."""
    nats: float
    """Of a character, the end counted."""


def make_model(settings: ExecuteSettings) -> ProgramExecutor:
    """The untrained model."""
    return ProgramExecutor(
        d_vocab=len(program_coder()),
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        n_layers=settings.n_layers,
        dropout=settings.dropout,
    )


def execute_job(settings: ExecuteSettings) -> Job:
    """Learn from programs that get harder when learning makes no more progress."""
    difficulties = Difficulties(settings.strategy, Difficulty(settings.length, settings.nesting))
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
        model=make_model(settings),
        batches=Curriculum(n_stages=difficulties.n_stages, batches=batches, is_passed=is_learnt),
        loss=execute_loss,
        validate=validate,
        score="characters",
        is_better="more",
        config=settings.training,
    )


def focus_at(settings: ExecuteSettings, epoch: int) -> float:
    """How far training has turned to what is hard, from 0 to 1."""
    return min(1.0, epoch / settings.focus) if settings.focus else 0.0


def focused(
    difficulties: Difficulties, stage: int, share: float, generator: random.Random
) -> Difficulty:
    """How hard the next program is to be."""
    if share and generator.random() < share:
        return difficulties.target
    return difficulties.draw(stage, generator)


def is_kept(share: float, source: str, generator: random.Random) -> bool:
    """Whether a program of one operation stays, when this share of the easy ones is left out."""
    return operation_of(source) not in EASY or generator.random() >= share


def is_learnt(scores: Sequence[Mapping[str, float]], stage: int) -> bool:
    """Whether a stage is solved, or its last two validations were hardly better than those before.

    Args:
        scores: Its validations, each with the share of right characters of its own programs.
    """
    found = [each[f"stage {stage}"] for each in scores]
    is_stuck = len(found) > 2 and max(found[-2:]) < max(found[:-2]) + PROGRESS
    return is_stuck or found[-1] >= SOLVED


def execute_loss(model: nn.Module, batch: PairBatch) -> LossOut:
    """Mean nats of a character that is to be written."""
    found = token_loss(model(batch), batch.target_out[batch.target_mask])
    return LossOut(found.loss, found.n_tokens)


def held_out(settings: ExecuteSettings, n: int, *, part: str) -> list[Program]:
    """Programs of the full difficulty that no training sees."""
    seed = VALID_SEED if part == "valid" else TEST_SEED
    always = partial(_always, Difficulty(settings.length, settings.nesting))
    return make_programs(n, always, seed=seed, part=part)


def _always(difficulty: Difficulty, generator: random.Random) -> Difficulty:
    del generator
    return difficulty


def encode_programs(programs: Sequence[Program], settings: ExecuteSettings) -> Pairs:
    """Programs and what they print, as batches want them."""
    written = partial(_written, settings)
    return encode_pairs(
        [written(each.source) for each in programs],
        [written(each.target) for each in programs],
        coder=program_coder(),
    )


def _written(settings: ExecuteSettings, text: str) -> str:
    return scramble(text, SCRAMBLE_SEED) if settings.is_scrambled else text


@torch.no_grad()
def accuracies(
    model: nn.Module, programs: Sequence[Program], settings: ExecuteSettings
) -> Accuracies:
    """How much of the results is right."""
    assert isinstance(model, ProgramExecutor)
    pairs = encode_programs(programs, settings)
    coder, device = program_coder(), model.output.weight.device
    n_right = n = n_tokens = 0
    nll, wrote, wanted = 0.0, [], []
    for batch in pairs.in_order(tokens=4 * settings.batch_tokens):
        here: PairBatch = moved(batch, device)
        logits = model(here)
        targets = here.target_out[here.target_mask]
        found = token_loss(logits, targets)
        nll, n_tokens = nll + found.nll.item(), n_tokens + found.n_tokens
        each = token_accuracy(logits.argmax(-1)[None], targets[None], (targets != EOS)[None])
        n_right, n = n_right + each.n_right, n + each.n
        said = greedy(model, sources_of(here), max_length=max_length(settings))
        wrote += [coder.decode(one.ids) for one in said]
        wanted += [coder.decode(row) for row in here.target_out.tolist()]
    exact = exact_match(wrote, wanted)
    return Accuracies(100 * n_right / max(1, n), 100 * exact.rate, nll / max(1, n_tokens))


def sources_of(batch: PairBatch) -> Padded:
    """The programs of a batch alone."""
    return Padded(batch.source, batch.source_mask)


def max_length(settings: ExecuteSettings) -> int:
    """More characters than any result has.

    Each operation makes a number longer by two digits at most (for lengths up to 24); there are a
    sign and an end.
    """
    return settings.length + 2 * settings.nesting + 4


def evaluate_executor(run: OpenRun) -> dict[str, float]:
    """On test programs."""
    programs = held_out(run.settings, run.settings.n_test, part="test")
    found = accuracies(run.model, programs, run.settings)
    return {**found._asdict(), **_by_operation(run, programs)}


def _by_operation(run: OpenRun, programs: Sequence[Program]) -> dict[str, float]:
    """Exact results by what the program does, where it does one thing."""
    if run.settings.nesting > 1:
        return {}
    kinds: dict[str, list[Program]] = {}
    for each in programs:
        kinds.setdefault(operation_of(each.source), []).append(each)
    return {
        f"exact_{kind}": accuracies(run.model, some, run.settings).exact
        for kind, some in sorted(kinds.items())
    }


def operation_of(source: str) -> str:
    r"""What a program of one operation does.

    >>> operation_of("a=5\nprint((a-7))"), operation_of("print((12*7))")
    ('assignment', 'product')
    """
    for sign, kind in (("for", "loop"), ("if", "choice"), ("=", "assignment"), ("*", "product")):
        if sign in source:
            return kind
    return "sum" if "((" in source else "value"


def run_programs(run: OpenRun, texts: Sequence[str], options: TranslateOptions) -> list[Translated]:
    """What each program prints, by beam search."""
    coder = program_coder()
    programs = [_written(run.settings, as_program(text)) for text in texts]
    limit = min(options.max_length, max_length(run.settings))
    found = beam(
        run.model,  # pyright: ignore[reportArgumentType]  a ProgramExecutor is a Stepper
        encode_sources(programs, coder),
        size=options.beam,
        max_length=limit,
        length_penalty=0.0,  # the likeliest result, not the longest
    )
    return [Translated(coder.decode(each.ids), each.log_prob) for each in found.best]


def as_program(text: str) -> str:
    r"""A program whose lines a user has joined by semicolons, or by backslash and n.

    >>> as_program("a=5;print((a-7))") == as_program(r"a=5\nprint((a-7))")
    True
    """
    program = text.replace("\\n", "\n").replace(";", "\n")
    coder = program_coder()
    if wrong := sorted({each for each in program if each not in coder.vocabulary}):
        raise UsageError(
            f"no program of Learning to Execute has the character {wrong[0]!r}",
            hint="lines such as a=12, for x in range(3):a+=5, and at last print((a-7))",
        )
    return program


def trace_program(run: OpenRun, text: str) -> list[Trace]:
    """How much each character of a program counts for each one written."""
    model, coder = run.model, program_coder()
    assert isinstance(model, ProgramExecutor)
    program = as_program(text)
    said = run_programs(run, [text], TranslateOptions(beam=1))[0].text
    pairs = encode_pairs([_written(run.settings, program)], [said], coder=coder)
    weights = model.influence_on(pairs.batch(torch.tensor([0])))
    return [
        Trace(
            kind="influence",
            steps=(*said, "</s>"),
            memory=(*program.replace("\n", "\u21b5").replace(" ", "_"), "</s>"),
            weights=weights,
            title=f"How much each character counts for each one of {said}",
        )
    ]
