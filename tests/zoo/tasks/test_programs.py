"""Judged against Python itself."""

import contextlib
import io
import random
import re

import pytest

from saccade.errors import UsageError
from saccade.zoo.tasks.programs import (
    CHARACTERS,
    Curriculum,
    Difficulty,
    execute,
    make_programs,
    part_of,
    program_tokenizer,
    scramble,
    write_program,
)
from saccade.zoo.tasks.vocabulary import UNK

HARD = Difficulty(length=4, nesting=3)
LOOP = (
    "d=5446\nfor x in range(8):d+=(2678 if 4803<2829 else 9848)\nprint((d if 5935<4845 else 3043))."
)


def by_python(source: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source, {})
    return printed.getvalue().strip()


def always(difficulty):
    return lambda _: difficulty


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("j=8584\nfor x in range(8):\n    j+=920\nb=(1500+j)\nprint((b+7567))", 25011),
        ("i=8827\nc=(i-5347)\nprint((c+8704) if 2641<8500 else 5308)", 12184),
        ("print((5997-738)).", 5259),
        ("print(((1090-3305)+9466)).", 7251),
        ("print(6652).", 6652),
        (LOOP, 3043),
    ],
)
def test_the_papers_examples_print_what_it_says(source, target):
    assert execute(source) == target
    assert by_python(source.removesuffix(".")) == str(target)


@pytest.mark.parametrize("difficulty", [(1, 1), (3, 1), (4, 3), (2, 10)])
def test_programs_print_what_python_prints(difficulty):
    made = make_programs(97, always(Difficulty(*difficulty)), seed=7)
    assert len(made) == 97
    assert [program.target for program in made] == [by_python(program.source) for program in made]


def test_all_six_operations_turn_up():
    text = "\n".join(p.source for p in make_programs(200, always(HARD), seed=7))
    for operation in (r"\+", r"-", r"\*", r"[a-j]=", r"for x in range\(", r" if .*[<>].* else "):
        assert re.search(operation, text)
    plain = [p.source for p in make_programs(60, always(Difficulty(2, 1)), seed=7)]
    assert any(re.fullmatch(r"print\(\d+\)", source) for source in plain)


def test_numbers_have_the_length_that_was_asked_for():
    sources = [p.source for p in make_programs(300, always(Difficulty(3, 1)), seed=7)]
    numbers = [int(n) for source in sources for n in re.findall(r"\d+", source)]
    assert min(numbers) > 0 and max(numbers) <= 10**3
    loops = [int(n) for source in sources for n in re.findall(r"range\((\d+)\)", source)]
    assert min(loops) > 0 and max(loops) == 4 * 3
    smalls = [min(map(int, pair)) for s in sources for pair in re.findall(r"(\d+)\*(\d+)", s)]
    assert max(smalls) <= 4 * 3


def test_nesting_is_the_number_of_operations_that_are_combined():
    for nesting in (1, 2, 5):
        sums = 0
        for seed in range(60):
            source = write_program(Difficulty(2, nesting), random.Random(seed))
            signs = len(re.findall(r"[-+*]=?|if", source))
            assert signs <= nesting
            sums += signs == nesting
        assert sums  # a value as it is has no sign, so not all


def test_the_same_seed_makes_the_same_programs():
    assert make_programs(17, always(HARD), seed=5) == make_programs(17, always(HARD), seed=5)
    assert make_programs(17, always(HARD), seed=5) != make_programs(17, always(HARD), seed=6)


def test_no_program_is_in_two_parts():
    parts = {
        part: {p.source for p in make_programs(150, always(Difficulty(1, 1)), seed=1, part=part)}
        for part in ("train", "valid", "test")
    }
    assert all(part_of(source) == part for part, held in parts.items() for source in held)
    assert not parts["train"] & parts["test"] and not parts["valid"] & parts["test"]


def test_every_character_of_a_program_has_an_id():
    tokenizer = program_tokenizer()
    used = set()
    for program in make_programs(300, always(HARD), seed=7):
        assert UNK not in tokenizer.encode(program.source + program.target)
        assert tokenizer.decode(tokenizer.encode(program.source)) == program.source
        used |= set(program.source + program.target)
    assert used == set(CHARACTERS)


def test_scrambling_is_a_secret_alphabet():
    source = "i=8827\nc=(i-5347)\nprint(((c+8704) if 2641<8500 else 5308))"
    secret = scramble(source, seed=3)
    assert secret != source and len(secret) == len(source)
    assert [len(line) for line in secret.split("\n")] == [len(line) for line in source.split("\n")]
    both = set(zip(source, secret, strict=True))
    assert len(both) == len(set(source)) == len(set(secret))
    assert scramble(source, seed=4) != secret
    assert UNK not in program_tokenizer().encode(secret)


def test_the_papers_scrambled_figure_is_of_this_kind():
    plain, secret = "i=8827c=(i-5347)", "vqppkn" + "sqdvfljmnc"
    assert len(set(zip(plain, secret, strict=True))) == len(set(plain)) == len(set(secret))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "does not end in one print"),
        ("a=1", "does not end in one print"),
        ("print(1)\nprint(2)", "'print(1)' is no statement"),
        ("print(a)", "'a' is no value"),
        ("print(2**9)", "is no value"),
        ("print(True)", "is no value"),
        ("import os\nprint(1)", "'import os' is no statement"),
        ("print(open('x'))", "is no value"),
        ("for x in range(99999999):a=1\nprint(1)", "a loop of 99999999 rounds is too long"),
        ("print((", "it cannot be read"),
    ],
)
def test_what_is_no_such_program_is_refused(source, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        execute(source)


@pytest.mark.parametrize("difficulty", [(0, 1), (1, 0), (3, 11)])
def test_a_difficulty_that_cannot_be_is_refused(difficulty):
    with pytest.raises(UsageError, match="no program has length"):
        write_program(Difficulty(*difficulty), random.Random(0))


def test_a_part_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="no part 'dev'"):
        make_programs(1, always(HARD), seed=0, part="dev")


def drawn(strategy, stage, n=2000):
    curriculum = Curriculum(strategy, HARD)
    generator = random.Random(0)
    return [curriculum.draw(stage, generator) for _ in range(n)]


def test_the_baseline_is_always_as_hard_as_the_target():
    assert set(drawn("baseline", 0)) == {HARD}
    assert Curriculum("baseline", HARD).n_stages == 1


def test_the_naive_curriculum_grows_in_length_and_then_in_nesting():
    curriculum = Curriculum("naive", HARD)
    stages = [tuple(curriculum.at(stage)) for stage in range(curriculum.n_stages)]
    assert stages == [(length, nesting) for nesting in (1, 2, 3) for length in (1, 2, 3, 4)]
    assert curriculum.at(99) == HARD
    assert set(drawn("naive", 5)) == {Difficulty(2, 2)}


def test_the_mix_draws_every_difficulty_equally_often():
    found = drawn("mix", 0, n=12_000)
    counts = [found.count(Difficulty(k, n)) for k in range(1, 5) for n in range(1, 4)]
    assert sum(counts) == 12_000
    assert all(880 < count < 1120 for count in counts)  # 1000 expected, within four deviations


def test_the_combined_curriculum_is_naive_with_some_of_the_mix():
    found = drawn("combined", 0)
    easy = found.count(Difficulty(1, 1)) / len(found)
    assert 0.75 < easy < 0.87  # 0.8 and a twelfth of 0.2
    assert HARD in found
    assert Curriculum("combined", HARD).n_stages == 12


def test_curricula_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="no curriculum 'blend'") as caught:
        Curriculum("blend", HARD)
    assert "combined" in caught.value.hint
    with pytest.raises(UsageError, match="are no difficulty"):
        Curriculum("mix", Difficulty(0, 1))
