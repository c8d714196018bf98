"""Learning to Execute: short programs and what they print.

Zaremba and Sutskever, 2014 (https://arxiv.org/abs/1410.4615), section 3. A program combines
``nesting`` operations: addition or subtraction, multiplication by a small number, assignment to a
variable, an if, a for loop, and a value as it is. Each takes the result of the one before at one of
its places and random numbers at the others. Numbers are drawn from 1 to 10^length, small factors
and loop counts from 1 to 4 x length, so that a program can be run in one pass from left to right.
"""

from __future__ import annotations

import ast
import operator
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from saccade.errors import UsageError
from saccade.zoo.tasks.tokenizers import CharacterTokenizer
from saccade.zoo.tasks.vocabulary import SYMBOLS, Vocabulary

# The difficulty of the next training example: the four curricula of the paper.

STRATEGIES = ("baseline", "naive", "mix", "combined")
# One in five examples of "combined" comes from "mix", as in the authors' code (there "blend").
_MIXED = 0.2


class Difficulty(NamedTuple):
    """Maximum digits of a number, and the number of combined operations."""

    length: int
    nesting: int


@dataclass(frozen=True)
class Curriculum:
    """Zaremba and Sutskever, 2014, section 3.3 (https://arxiv.org/abs/1410.4615).

    * baseline: always the target difficulty.
    * naive: starts with length 1 and nesting 1. Whenever learning stops making progress the length
      grows by one; beyond the target length the nesting grows by one and the length is 1 again.
    * mix: length and nesting are each drawn evenly from 1 to the target's, for every example.
    * combined: each example is drawn from "mix" or from "naive".

    The curriculum does not track progress: the training loop passes the current ``stage``.

    >>> curriculum = Curriculum("naive", Difficulty(length=2, nesting=2))
    >>> [tuple(curriculum.at(stage)) for stage in range(curriculum.n_stages)]
    [(1, 1), (2, 1), (1, 2), (2, 2)]
    """

    strategy: str
    target: Difficulty

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UsageError(
                f"no curriculum {self.strategy!r}", hint=f"one of {', '.join(STRATEGIES)}"
            )
        if min(self.target) < 1:
            raise UsageError(
                f"length {self.target.length} and nesting {self.target.nesting} are no difficulty",
                hint="both are at least 1",
            )

    @property
    def n_stages(self) -> int:
        """Number of stages; the last one never ends."""
        has_stages = self.strategy in ("naive", "combined")
        return self.target.length * self.target.nesting if has_stages else 1

    def at(self, stage: int) -> Difficulty:
        """The highest difficulty of a stage."""
        if self.n_stages == 1:
            return self.target
        nesting, length = divmod(min(stage, self.n_stages - 1), self.target.length)
        return Difficulty(length + 1, nesting + 1)

    def draw(self, stage: int, generator: random.Random) -> Difficulty:
        """The difficulty of the next example."""
        if self.strategy == "mix" or (self.strategy == "combined" and generator.random() < _MIXED):
            length, nesting = self.target
            return Difficulty(generator.randint(1, length), generator.randint(1, nesting))
        return self.at(stage)


# Runs the programs of Learning to Execute, and nothing else.

_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARISONS: dict[type, Callable[[int, int], bool]] = {ast.Lt: operator.lt, ast.Gt: operator.gt}
_MOST_ROUNDS = 1_000_000  # a loop count is at most 4 * length; this only stops invalid programs


def execute(source: str) -> int:
    r"""What a program prints. A full stop at its end, as in the paper's figures, is ignored.

    Python's own parser reads it; every statement and expression is evaluated here, so that an
    untrusted program can only do arithmetic.

    >>> execute("j=8584\nfor x in range(8):\n    j+=920\nb=(1500+j)\nprint((b+7567))")
    25011
    """
    try:
        statements = ast.parse(source.strip().removesuffix(".")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise _refused(f"it cannot be read ({reason})") from error
    variables: dict[str, int] = {}
    for statement in statements[:-1]:
        _run(statement, variables)
    match statements[-1:]:
        case [ast.Expr(ast.Call(ast.Name("print"), [value], []))]:
            return _value(value, variables)
    raise _refused("it does not end in one print of one value")


def _run(statement: ast.stmt, variables: dict[str, int]) -> None:
    match statement:
        case ast.Assign([ast.Name(name)], value):
            variables[name] = _value(value, variables)
        case ast.AugAssign(ast.Name(name), sign, value) if type(sign) in _ARITHMETIC:
            held = _value(ast.Name(name), variables)
            variables[name] = _ARITHMETIC[type(sign)](held, _value(value, variables))
        case ast.For(ast.Name(name), ast.Call(ast.Name("range"), [count], []), body, []):
            rounds = _value(count, variables)
            if rounds > _MOST_ROUNDS:
                raise _refused(f"a loop of {rounds} rounds is too long")
            for variables[name] in range(rounds):
                for inner in body:
                    _run(inner, variables)
        case _:
            raise _refused(f"{ast.unparse(statement)!r} is no statement of these programs")


def _value(node: ast.expr, variables: dict[str, int]) -> int:
    match node:
        case ast.Constant(int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(name) if name in variables:
            return variables[name]
        case ast.BinOp(left, sign, right) if type(sign) in _ARITHMETIC:
            return _ARITHMETIC[type(sign)](_value(left, variables), _value(right, variables))
        case ast.IfExp(ast.Compare(left, [sign], [right]), yes, no) if type(sign) in _COMPARISONS:
            is_so = _COMPARISONS[type(sign)](_value(left, variables), _value(right, variables))
            return _value(yes if is_so else no, variables)
        case ast.UnaryOp(ast.USub(), inner):
            return -_value(inner, variables)
    raise _refused(f"{ast.unparse(node)!r} is no value of these programs")


def _refused(why: str) -> UsageError:
    return UsageError(
        f"this is no program of Learning to Execute: {why}",
        hint="lines such as a=12, for x in range(3):a+=5, and at last print((a-7))",
    )


VARIABLES = "abcdefghij"
CHARACTERS = "\n ()*+-0123456789:<=>" + "abcdefghijlnoprstx"
"""All characters of programs and of their outputs."""
SMALL = 4  # section 3.1: small numbers are from 1 to 4 * length
PARTS = ("train", "valid", "test")


class Program(NamedTuple):
    """A program, and what it prints."""

    source: str
    target: str


def make_programs(
    n: int,
    difficulty: Callable[[random.Random], Difficulty],
    *,
    seed: int,
    part: str = "train",
    keep: Callable[[str, random.Random], bool] | None = None,
) -> list[Program]:
    """``n`` random programs of one part, the same for the same seed on every machine.

    A program's part follows from a checksum of its text, as in the paper's own code (a third each),
    so no program is ever in two parts, whatever the seeds.

    Args:
        difficulty: the difficulty of the next program: `Curriculum.draw` of some stage.
        keep: whether to keep the program of this text; by default all of the part are kept.
    """
    if part not in PARTS:
        raise UsageError(f"programs have no part {part!r}", hint=f"one of {', '.join(PARTS)}")
    generator = random.Random(seed)
    made: list[Program] = []
    while len(made) < n:
        source = write_program(difficulty(generator), generator)
        if part_of(source) == part and (keep is None or keep(source, generator)):
            made.append(Program(source, str(execute(source))))
    return made


def part_of(source: str) -> str:
    """The part a program belongs to, by a checksum of its text."""
    return PARTS[zlib.crc32(source.encode()) % len(PARTS)]


def write_program(difficulty: Difficulty, generator: random.Random) -> str:
    """The text of one random program.

    As the authors' code, but for three things in which we follow the paper: one length is drawn for
    a whole program (section 3.3), no assignment ends in a semicolon, and lines end in line feeds
    (its metrics).
    """
    if not (difficulty.length >= 1 and 1 <= difficulty.nesting <= len(VARIABLES)):
        raise UsageError(
            f"no program has length {difficulty.length} and nesting {difficulty.nesting}",
            hint=f"length is at least 1, nesting from 1 to {len(VARIABLES)}",
        )
    writer = _Writer(difficulty.length, generator)
    for _ in range(difficulty.nesting):
        writer.result = generator.choice(OPERATIONS)(writer)
    return "\n".join([*writer.lines, f"print({writer.result})"])


class _Writer:
    """The lines so far, and the expression of the result so far."""

    def __init__(self, length: int, generator: random.Random) -> None:
        self.lines: list[str] = []
        self.result: str | None = None
        self.generator = generator
        self._length = length
        self._unused = list(VARIABLES)

    def operands(self, n: int) -> list[str]:
        """``n`` expressions: the result so far at a random place, numbers at the others."""
        made = [str(self.generator.randint(1, 10**self._length)) for _ in range(n)]
        if self.result is not None:
            made[self.generator.randrange(n)] = self.result
        return made

    def small(self) -> int:
        return self.generator.randint(1, SMALL * self._length)

    def either(self, signs: str) -> str:
        return self.generator.choice(signs)

    def variable(self) -> str:
        return self._unused.pop(self.generator.randrange(len(self._unused)))


def _operand(writer: _Writer) -> str:
    return writer.operands(1)[0]


def _sum(writer: _Writer) -> str:
    a, b = writer.operands(2)
    return f"({a}{writer.either('+-')}{b})"


def _small_product(writer: _Writer) -> str:
    (a,), small = writer.operands(1), writer.small()
    return writer.generator.choice([f"({a}*{small})", f"({small}*{a})"])


def _assignment(writer: _Writer) -> str:
    variable, (a, b) = writer.variable(), writer.operands(2)
    writer.lines.append(f"{variable}={a}")
    return f"({variable}{writer.either('+-')}{b})"


def _loop(writer: _Writer) -> str:
    variable, (a, b) = writer.variable(), writer.operands(2)
    writer.lines.append(f"{variable}={a}")
    writer.lines.append(f"for x in range({writer.small()}):{variable}{writer.either('+-')}={b}")
    return variable


def _choice(writer: _Writer) -> str:
    a, b, c, d = writer.operands(4)
    return f"({a} if {b}{writer.either('<>')}{c} else {d})"


OPERATIONS: tuple[Callable[[_Writer], str], ...] = (
    _operand,
    _sum,
    _small_product,
    _assignment,
    _loop,
    _choice,
)


def program_tokenizer() -> CharacterTokenizer:
    """One id for each character of programs; the set is fixed, no text is needed."""
    return CharacterTokenizer(Vocabulary((*SYMBOLS, *CHARACTERS)))


def scramble(text: str, seed: int) -> str:
    """The text under a fixed permutation of all characters but line feeds.

    The paper's figure 1, bottom: what a program looks like to a network, for which characters have
    no meaning. As a control: a model that learns only from structure must do as well on such
    programs.

    >>> scramble("print(8)", seed=1) == scramble("print(8)", seed=1)
    True
    """
    letters = [each for each in CHARACTERS if each != "\n"]
    others = random.Random(seed).sample(letters, len(letters))
    return text.translate(dict(zip(map(ord, letters), others, strict=True)))
