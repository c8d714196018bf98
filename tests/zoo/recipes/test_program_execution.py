"""Learning to Execute from programs to metrics."""

import random
from functools import partial

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.models.program_executor import ProgramExecutor
from saccade.zoo.recipes import program_execution
from saccade.zoo.recipes.recipe import TranslateOptions, find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.tasks.programs import (
    OPERATIONS,
    Curriculum,
    Difficulty,
    execute,
    make_programs,
    part_of,
)
from saccade.zoo.training.settings import with_settings

SMALL = [
    *("length=1", "d_embed=7", "d_hidden=13", "n_layers=1", "programs=200", "batch_tokens=512"),
    *("n_valid=31", "n_test=37", "steps=12", "validate_steps=4", "warmup=2"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    recipe = find_recipe("execute")
    folder = tmp_path_factory.mktemp("runs") / "execute"
    metrics = train_recipe(recipe, folder, settings=with_settings(recipe.settings, SMALL))
    return load_run(folder), metrics


def settings(*words):
    return with_settings(find_recipe("execute").settings, [*SMALL, *words])


def test_a_run_has_both_metrics_and_one_for_each_operation(run):
    test = run[1]["test"]
    assert {"exact", "nats", *run[0].recipe.other_metrics} < test.keys()
    kinds = {name for name in test if name.startswith("exact_")}
    assert len(kinds) == len(OPERATIONS)
    assert run[1]["value"] == test["exact"]


def test_batches_are_the_same_for_the_same_epoch_and_stage():
    job = find_recipe("execute").build(settings(), None)
    first, again, other, harder = (
        torch.cat([batch.source.flatten() for batch in job.batches_of(epoch, stage)])
        for epoch, stage in ((3, 0), (3, 0), (4, 0), (3, 1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, harder)


def test_no_program_of_training_is_ever_tested():
    valid = program_execution.held_out(settings(), 50, part="valid")
    test = program_execution.held_out(settings(), 50, part="test")
    assert {part_of(each.source) for each in valid} == {"valid"}
    assert {part_of(each.source) for each in test} == {"test"}


def test_the_combined_curriculum_has_a_stage_for_each_length():
    build = find_recipe("execute").build
    combined = build(settings("length=3", "strategy=combined"), None)
    assert combined.batches.n_stages == 3
    assert build(settings("length=3", "strategy=baseline"), None).batches.n_stages == 1


def test_the_full_difficulty_gets_more_of_the_programs_with_every_epoch():
    chosen = settings("length=3", "strategy=mix", "focus=4")
    mix = Curriculum("mix", Difficulty(3, 1))

    def share(epoch: int) -> float:
        generator = random.Random(0)
        focus = program_execution.FOCUS * program_execution.focus_at(chosen, epoch)
        drawn = [program_execution.focused(mix, 0, focus, generator) for _ in range(3000)]
        return sum(each == Difficulty(3, 1) for each in drawn) / len(drawn)

    # A third of the mix, and from there to four fifths and a third of the rest.
    for epoch, expected in ((0, 1 / 3), (2, 0.4 + 0.6 / 3), (4, 0.8 + 0.2 / 3), (9, 0.8 + 0.2 / 3)):
        assert share(epoch) == pytest.approx(expected, abs=0.03)
    assert program_execution.focus_at(settings("focus=0"), 9) == 0.0


def test_of_easy_programs_only_the_wanted_share_is_left_out():
    def easy(left_out: float) -> int:
        always = partial(program_execution._always, Difficulty(3, 1))
        keep = partial(program_execution.is_kept, left_out)
        made = make_programs(3000, always, seed=0, keep=keep)
        sources = [each.source for each in made if "=" not in each.source]  # and so no loop
        return sum("if" in source or "((" not in source for source in sources)

    assert easy(0.0) == pytest.approx(1000, rel=0.1)
    # Two kinds in six, each a tenth as often: 0.2 of 4.2.
    assert easy(0.9) == pytest.approx(3000 * 0.2 / 4.2, rel=0.2)


@pytest.mark.parametrize(
    ("characters", "is_over"),
    [
        ([10.0, 20.0], False),
        ([10.0, 20.0, 30.0], False),
        ([10.0, 30.0, 30.5, 30.4], True),
        ([10.0, 30.0, 29.0, 31.5], False),
        ([96.0], True),
    ],
)
def test_a_stage_is_over_when_its_own_programs_are_solved_or_make_no_progress(characters, is_over):
    scores = [
        {"characters": float(number), "stage 0": 0.0, "stage 1": each}
        for number, each in enumerate(characters)
    ]
    assert program_execution.is_learnt(scores, 1) == is_over


class Knows(ProgramExecutor):
    """Writes what the programs print, except that one digit is always a 7."""

    def __init__(self, programs, wrong_at):
        super().__init__(d_vocab=43, d_embed=3, d_hidden=5, n_layers=1)
        self.tokenizer = program_execution.program_tokenizer()
        self.answers = {each.source: each.target for each in programs}
        self.wrong_at = wrong_at

    def forward(self, batch):
        rows = []
        for source, target in zip(batch.source, batch.target_out, strict=True):
            right = [each for each in target.tolist() if each]
            answer = self.answers[self.tokenizer.decode(source.tolist())]
            assert self.tokenizer.decode(right) == answer
            if self.wrong_at < len(answer):
                right[self.wrong_at] = self.tokenizer.encode("7")[0]
            rows += right
        return torch.nn.functional.one_hot(torch.tensor(rows), 43).float() * 50

    def start(self, source):
        texts = [self.tokenizer.decode(row) for row in source.ids.tolist()]
        ids = [[*self.tokenizer.encode(self.answers[text]), 2] for text in texts]
        for row in ids:
            if self.wrong_at < len(row) - 1:
                row[self.wrong_at] = self.tokenizer.encode("7")[0]
        padded = torch.tensor([row + [2] * (12 - len(row)) for row in ids])
        return Started(None, (padded, torch.zeros(len(ids), dtype=torch.long)))

    def step(self, tokens, memory, state):
        del tokens, memory
        answers, place = state
        chosen = answers.gather(1, place[:, None])[:, 0]
        log_probs = torch.nn.functional.one_hot(chosen, 43).float().mul(50).log_softmax(-1)
        return Stepped(log_probs, (answers, place + 1))


def test_a_validation_tells_how_stages_do_on_programs_as_hard_as_their_own():
    chosen = settings("length=2", "n_valid=30", "strategy=combined")
    easy = make_programs(
        program_execution.EASIER,
        lambda _: Difficulty(1, 1),
        seed=program_execution.VALID_SEED,
        part="valid",
    )
    known = Knows([*easy, *program_execution.held_out(chosen, 30, part="valid")], wrong_at=1).eval()
    scores = find_recipe("execute").build(chosen, None).validate(known)
    assert set(scores) == {"characters", "exact", "nats", "stage 0"}
    assert scores["stage 0"] == program_execution.accuracies(known, easy, chosen).characters
    assert scores["stage 0"] > scores["characters"] > 0  # a first digit is right, and often alone


@pytest.mark.parametrize("wrong_at", [0, 1, 99])
def test_accuracies_are_those_counted_by_hand(wrong_at):
    programs = make_programs(40, lambda _: Difficulty(3, 1), seed=5)
    found = program_execution.accuracies(
        Knows(programs, wrong_at).eval(), programs, settings("length=3")
    )
    texts = [each.target for each in programs]
    spoilt = [
        text[:wrong_at] + "7" + text[wrong_at + 1 :] if wrong_at < len(text) else text
        for text in texts
    ]
    n_right = sum(a == b for a, b in zip("".join(texts), "".join(spoilt), strict=True))
    assert found.characters == pytest.approx(100 * n_right / sum(map(len, texts)))
    exact = sum(a == b for a, b in zip(texts, spoilt, strict=True))
    assert found.exact == pytest.approx(100 * exact / len(texts))


def test_no_result_is_longer_than_what_may_be_written():
    for length, nesting in ((1, 1), (3, 1), (2, 3), (6, 2)):
        curriculum = Curriculum("baseline", Difficulty(length, nesting))
        programs = make_programs(300, partial(curriculum.draw, 0), seed=1)
        limit = program_execution.max_length(settings(f"length={length}", f"nesting={nesting}"))
        assert max(len(each.target) for each in programs) + 1 <= limit


def test_scrambled_programs_say_the_same_in_other_letters():
    programs = make_programs(20, lambda _: Difficulty(2, 1), seed=3)
    plain = program_execution.encode_programs(programs, settings())
    secret = program_execution.encode_programs(programs, settings("is_scrambled=true"))
    assert torch.equal(plain.source.lengths, secret.source.lengths)
    assert not torch.equal(plain.source.values, secret.source.values)
    pairs = set(zip(plain.source.values.tolist(), secret.source.values.tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_a_users_program_is_run(run):
    opened, _ = run
    said = opened.recipe.translate(opened, [r"a=5\nprint((a-7))", "print(3)"], TranslateOptions())
    assert len(said) == 2 and all(each.log_prob < 0 for each in said)
    assert execute(program_execution.as_program("a=5;print((a-7))")) == -2


def test_what_is_no_program_is_refused(run):
    opened, _ = run
    with pytest.raises(UsageError, match="has the character 'Z'"):
        opened.recipe.translate(opened, ["print(Z)"], TranslateOptions())


def test_a_trace_has_a_row_for_each_character_written(run):
    opened, _ = run
    (trace,) = opened.recipe.trace(opened, "print((3+4))")
    assert "".join(trace.memory) == "print((3+4))</s>"
    torch.testing.assert_close(trace.weights.sum(-1), torch.ones(len(trace.steps)))
