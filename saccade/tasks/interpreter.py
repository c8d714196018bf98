"""Runs the programs of Learning to Execute, and nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from saccade.errors import UsageError

_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARISONS: dict[type, Callable[[int, int], bool]] = {ast.Lt: operator.lt, ast.Gt: operator.gt}
_MOST_ROUNDS = (
    1_000_000  # a loop count is at most 4 * length; this only stops what is no such program
)


def execute(source: str) -> int:
    r"""What a program prints. A full stop at its end, as in the paper's figures, is no matter.

    Python's own parser reads it; every statement and expression is carried out here, so that a
    program from anywhere can do nothing but arithmetic.

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
