"""Mutation testing: change one place of a module at a time and check that its tests fail.

    python tools/mutation.py saccade/interp/heads/checks.py
    python tools/mutation.py saccade/interp/heads --folder --sample 40 --results /tmp/heads.jsonl
    python tools/mutation.py saccade/interp/heads --folder --results /tmp/heads.jsonl --survivors

    COVERAGE_FILE=/tmp/cover pytest --cov=saccade --cov-context=test tests/interp tests/cli
    python tools/mutation.py saccade/interp/heads --coverage /tmp/cover --sample 12

Prints JSON: for each module the number of mutants, the number that its tests killed, and each
survivor with its location and change. A survivor is either a missing test or an equivalent mutant,
which no test can distinguish from the original. Equivalent mutants are listed with the reason in
`mutation_equivalent.json` in this folder, by module, function and change, and are not run.
With `--coverage` (a file written by pytest-cov) a mutant runs the tests that reach its line, from
any file, at most `MOST_TESTS` of them; without it, the test files of its module.

The mutants run in a temporary copy of the package and its tests, with a temporary home and cache.
Python, torch and all other imports of the tests are loaded once; each mutant is a fork of that
process, so that its start takes one second instead of five. No published tool does this: mutmut 3
skips every function with a decorator and every method of a dataclass (most of this package), and
cosmic-ray changes the files in place and starts a new Python for each mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = Path(__file__).with_name("mutation_equivalent.json")
COPIED = ("saccade", "tests", "pyproject.toml", "README.md", "tools", "bench", "docs", "Makefile")

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_PAIRS = ("min max", "amin amax", "argmin argmax", "any all", "clamp_min clamp_max")
_PAIRS += ("minimum maximum", "floor ceil", "zeros ones", "zeros_like ones_like", "tril triu")
OPPOSITES = {a: b for pair in _PAIRS for a, b in (pair.split(), reversed(pair.split()))}
SKIPPED = (ast.Raise, ast.Delete, ast.AugAssign, ast.Continue, ast.Break)
REMOVABLE = ("abs", "clamp", "clamp_min", "clamp_max", "sorted", "reversed", "round", "sqrt")
MOST_TESTS = 30

Key = tuple[str, str, str]
"""Module, function and change of a mutant."""


@dataclass(frozen=True)
class Mutant:
    """One change of a module: location, diff of the code without comments, and new code."""

    module: str
    function: str
    line: int
    change: str
    code: str

    @property
    def key(self) -> Key:
        """Identifies the mutant independently of its line number."""
        return self.module, self.function, self.change


def mutants_of(source: str, module: str) -> list[Mutant]:
    """All distinct mutants of a module's source, from top to bottom."""
    tree = ast.parse(source)
    original = ast.unparse(tree)
    found: dict[str, Mutant] = {}
    for holder, field, index, function in _places(tree, ""):
        node = _get(holder, field, index)
        for new in _replacements(node, holder):
            _put(holder, field, index, new)
            code = ast.unparse(ast.fix_missing_locations(tree))
            _put(holder, field, index, node)
            if code != original and code not in found and _compiles(code):
                change = _difference(original, code)
                found[code] = Mutant(module, function, getattr(node, "lineno", 0), change, code)
    return list(found.values())


def _difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in list(lines)[2:] if line[0] in "+-")


def _compiles(code: str) -> bool:
    try:
        compile(code, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _get(holder: ast.AST, field: str, index: int | None) -> ast.AST:
    value = getattr(holder, field)
    return value if index is None else value[index]


def _put(holder: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(holder, field, node)
    else:
        getattr(holder, field)[index] = node


def _places(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str, int | None, str]]:
    """Every node that may be changed: its parent, the field in it, and the enclosing function.

    Annotations, decorators, assertions and error messages are not changed.
    """
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            yield node, field, index if isinstance(value, list) else None, function
            if isinstance(child, ast.Raise):
                continue
            inside = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{function}.{child.name}".lstrip(".")
            yield from _places(child, inside)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changed(node: Any, **fields: Any) -> Any:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _without(items: Sequence[Any], index: int) -> list[Any]:
    return [*items[:index], *items[index + 1 :]]


def _replacements(node: ast.AST, holder: ast.AST) -> Iterator[ast.AST]:
    """Replacements of a node; none for most kinds."""
    yield from _other_operators(node)
    yield from _other_values(node)
    yield from _other_calls(node)
    yield from _other_branches(node)
    is_effect = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield | ast.YieldFrom)
    is_early = isinstance(node, ast.Return) and not isinstance(holder, ast.FunctionDef)
    is_stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name)
    if is_effect or is_early or is_stored or isinstance(node, SKIPPED):
        yield ast.Pass()


def _other_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for index, operator in enumerate(ops):
                for other in COMPARISONS[type(operator)]:
                    yield _changed(node, ops=[*ops[:index], other(), *ops[index + 1 :]])
        case ast.BoolOp(op=operator, values=values):
            yield _changed(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            for index in range(len(values)):
                rest = _without(values, index)
                yield rest[0] if len(rest) == 1 else _changed(node, values=rest)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BinOp(left=ast.JoinedStr() | ast.Constant(value=str())):
            pass  # joined or formatted text
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in ARITHMETIC:
            yield _changed(node, op=ARITHMETIC[type(operator)]())


def _other_values(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool(value)):
            yield _changed(node, value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield _changed(node, value=value + 1)
            if value == 1:
                yield _changed(node, value=value - 1)
        case ast.Slice(lower=lower, upper=upper):
            for field, bound in (("lower", lower), ("upper", upper)):
                if bound is not None and not isinstance(bound, ast.Constant):
                    shifted = ast.BinOp(bound, ast.Add(), ast.Constant(1))
                    yield _changed(node, **{field: shifted})
            if lower is None and upper is not None:
                yield _changed(node, upper=None)


def _other_calls(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr=name), args=args):
            if name in OPPOSITES:
                yield _changed(node, func=_changed(node.func, attr=OPPOSITES[name]))
            if name in REMOVABLE:
                yield args[0] if ast.unparse(of) in ("torch", "math") else of
        case ast.Call(func=ast.Name(id=name), args=args):
            if name in OPPOSITES:
                yield _changed(node, func=ast.Name(OPPOSITES[name]))
            if name in REMOVABLE and args:
                yield args[0]


def _other_branches(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            for forced in (True, False):
                constant: ast.expr = ast.Constant(forced)
                if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(test)):
                    constant = ast.BoolOp(ast.Or() if forced else ast.And(), [test, constant])
                yield _changed(node, test=constant)
        case ast.While(test=test):
            yield _changed(node, test=ast.BoolOp(ast.And(), [test, ast.Constant(False)]))
        case ast.comprehension(ifs=ifs):
            for index in range(len(ifs)):
                yield _changed(node, ifs=_without(ifs, index))


class Bench:
    """A temporary copy of the repository in which mutants run, one at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.home = folder / "home"
        self.output = folder / "output.txt"
        self.copy = folder / "repository" / "saccade"
        self.copy.mkdir(parents=True)
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(
                    root / name,
                    self.copy / name,
                    ignore=shutil.ignore_patterns("__pycache__", "node_modules"),
                )
            elif (root / name).exists():
                shutil.copy2(root / name, self.copy / name)
        if (root.parent / "shared").is_dir():  # trained models for tests, next to the repository
            (self.copy.parent / "shared").symlink_to(root.parent / "shared")

    def write(self, module: str, code: str) -> None:
        """Write a version of a module and remove compiled files of other versions."""
        file = self.copy / module
        for stale in file.parent.glob(f"__pycache__/{file.stem}.*"):
            stale.unlink()
        file.write_text(code, encoding="utf-8")

    def start(self, arguments: Sequence[str], *, loaded: Path | None = None) -> int:
        """Fork, run pytest there and return the process id.

        Args:
            loaded: A file for the names of the modules that pytest imported.
        """
        shutil.rmtree(self.home, ignore_errors=True)
        (self.home / "tmp").mkdir(parents=True)
        process = os.fork()
        if process == 0:
            code = 70
            try:
                code = self._run(arguments, loaded)
            finally:
                os._exit(code)
        return process

    def _run(self, arguments: Sequence[str], loaded: Path | None) -> int:
        os.setsid()
        os.chdir(self.copy)
        with self.output.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.path.insert(0, str(self.copy))
        os.environ.update(
            PYTHONPATH=str(self.copy),
            HOME=str(self.home),
            TMPDIR=str(self.home / "tmp"),
            SACCADE_CACHE=str(self.home / "cache"),
        )
        tempfile.tempdir = None
        import pytest

        ours = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main([*ours, "-x", "-q", *arguments]))
        if loaded is not None:
            prefixes = (sys.prefix, sys.base_prefix)
            names = [
                name
                for name, module in list(sys.modules.items())
                if (getattr(module, "__file__", None) or "").startswith(prefixes)
            ]
            loaded.write_text(json.dumps(names), encoding="utf-8")
        sys.stdout.flush()
        return code


def tests_of(root: Path, module: str, *, folder: bool) -> list[str]:
    """The test files of a module: its own, then (on request or if it has none) its folder's."""
    at = Path(module)
    tests = root / "tests" / Path(*at.parts[1:-1])
    every = sorted(tests.glob("test_*.py"))
    own = [t for t in every if t.stem == f"test_{at.stem}" or t.stem.startswith(f"test_{at.stem}_")]
    files = [*own, *(t for t in every if t not in own)] if folder or not own else own
    doctests = [module] if ">>> " in (root / module).read_text(encoding="utf-8") else []
    return [*(file.relative_to(root).as_posix() for file in files), *doctests]


def tests_that_reach(root: Path, module: str, file: Path) -> Callable[[int], list[str]]:
    """A map from a line of a module to the tests that run it, from the data of pytest-cov.

    A line that only runs on import (a constant, a default) maps to all tests of the module.
    """
    from coverage import CoverageData  # comes with pytest-cov

    data = CoverageData(str(file))
    data.read()
    measured = next((name for name in data.measured_files() if name.endswith(f"/{module}")), "")
    by_line = {
        line: {context.rpartition("|")[0] for context in contexts if "|" in context}
        for line, contexts in data.contexts_by_lineno(measured).items()
    }
    own = {test for test in tests_of(root, module, folder=False) if test.startswith("tests")}
    every = set[str]().union(*by_line.values())

    def tests(line: int) -> list[str]:
        reached = max((each for each in by_line if each <= line), default=0)
        found = by_line.get(reached) or every
        return sorted(found, key=lambda test: (test.partition("::")[0] not in own, test))[
            :MOST_TESTS
        ]

    return tests


def poll(process: int, *, is_late: bool) -> int | None:
    """The exit code of a finished test run; None while it runs. A late run is killed."""
    done, status = os.waitpid(process, os.WNOHANG)
    if not done and not is_late:
        return None
    with contextlib.suppress(ProcessLookupError):  # also the processes that the tests left running
        os.killpg(process, signal.SIGKILL)
    if not done:
        _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


class TestsFailError(Exception):
    """The tests of a module fail on the unchanged module, so they cannot test its mutants."""


@dataclass(frozen=True)
class Round:
    """How the mutants of a module run: folders, arguments of pytest, timeout."""

    module: str
    benches: Sequence[Bench]
    arguments: Sequence[str]
    arguments_of: Callable[[Mutant], Sequence[str]]
    timeout: float

    def warm(self, code: str) -> float:
        """Run the tests on the original, import what they import, and return the time limit."""
        for bench in self.benches:
            bench.write(self.module, code)
        loaded = self.benches[0].home.with_name("loaded.json")
        seconds = self._run_original(loaded)
        for name in json.loads(loaded.read_text(encoding="utf-8")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # memory pages of loaded modules stay shared with the forks
        return self.timeout + 3 * seconds

    def _run_original(self, loaded: Path) -> float:
        began = time.monotonic()
        bench = self.benches[0]
        process = bench.start(self.arguments, loaded=loaded)
        while (code := poll(process, is_late=False)) is None:
            time.sleep(0.05)
        if code != 0:
            output = bench.output.read_text(encoding="utf-8", errors="replace")
            raise TestsFailError(
                f"{self.module}: its tests fail without a change\n{output[-3000:]}"
            )
        return time.monotonic() - began

    def run(self, mutants: Sequence[Mutant], limit: float) -> Iterator[dict[str, Any]]:
        """The verdict on each mutant; a timeout counts as killed. One mutant per bench at once."""
        waiting, free = list(reversed(mutants)), list(self.benches)
        running: dict[int, tuple[Bench, Mutant, float]] = {}
        try:
            while waiting or running:
                while waiting and free:
                    bench, mutant = free.pop(), waiting.pop()
                    bench.write(mutant.module, mutant.code)
                    process = bench.start(self.arguments_of(mutant))
                    running[process] = (bench, mutant, time.monotonic())
                for process, (bench, mutant, began) in list(running.items()):
                    seconds = time.monotonic() - began
                    if (code := poll(process, is_late=seconds > limit)) is not None:
                        del running[process]
                        free.append(bench)
                        verdict = "timeout" if seconds > limit else "killed" if code else "survived"
                        told = {**asdict(mutant), "verdict": verdict, "seconds": round(seconds, 2)}
                        del told["code"]
                        yield told
                time.sleep(0.02)
        finally:
            for process in running:
                poll(process, is_late=True)


def known_equivalents(file: Path) -> set[Key]:
    """The keys of the mutants that no test can kill."""
    entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return {(each["module"], each["function"], "\n".join(each["change"])) for each in entries}


def judged_before(results: Path | None) -> dict[Key, dict[str, Any]]:
    """The last verdict on each mutant in a results file."""
    lines = results.read_text(encoding="utf-8").splitlines() if results and results.exists() else []
    verdicts = [json.loads(line) for line in lines]
    return {(each["module"], each["function"], each["change"]): each for each in verdicts}


def judge(module: str, asked: argparse.Namespace, benches: Sequence[Bench]) -> dict[str, Any]:
    """Make the mutants of a module, run those without a verdict, and summarise."""
    source = (asked.root / module).read_text(encoding="utf-8")
    made = mutants_of(source, module)
    equivalent = {key for key in known_equivalents(asked.equivalent) if key[0] == module}
    before = judged_before(asked.results)
    chosen = [
        mutant
        for mutant in made
        if mutant.key not in equivalent and (not asked.lines or mutant.line in asked.lines)
    ]
    if asked.survivors:
        survivors = {key for key, each in before.items() if each["verdict"] == "survived"}
        chosen, before = [mutant for mutant in chosen if mutant.key in survivors], {}
    elif asked.sample and asked.sample < len(chosen):
        picked = random.Random(asked.seed).sample(range(len(chosen)), asked.sample)
        chosen = [chosen[index] for index in sorted(picked)]
    verdicts = [before[mutant.key] for mutant in chosen if mutant.key in before]
    if new := [mutant for mutant in chosen if mutant.key not in before]:
        if asked.coverage:
            reach = tests_that_reach(asked.root, module, asked.coverage)
            tests = list(dict.fromkeys(test for mutant in new for test in reach(mutant.line)))
        else:
            tests = asked.tests or tests_of(asked.root, module, folder=asked.folder)
            reach = lambda _: tests  # noqa: E731
        a_round = Round(
            module=module,
            benches=benches,
            arguments=[*tests, "-k", asked.k],
            arguments_of=lambda mutant: [*reach(mutant.line), "-k", asked.k],
            timeout=asked.timeout,
        )
        limit = a_round.warm(ast.unparse(ast.parse(source)))
        for verdict in a_round.run(new, limit):
            verdicts.append(verdict)
            _tell(verdict, asked.results, f"{module} {len(verdicts)}/{len(chosen)}")
        for bench in benches:
            bench.write(module, source)
    survived = [each for each in verdicts if each["verdict"] == "survived"]
    names = {mutant.key for mutant in made}
    return {
        "module": module,
        "mutants": len(made),
        "run": len(verdicts),
        "killed": len(verdicts) - len(survived),
        "equivalent": len(equivalent & names),
        "listed as equivalent, but no mutant": sorted(equivalent - names),
        "survived": [
            {
                "at": f"{module}:{each['line']}",
                "function": each["function"],
                "change": each["change"].split("\n"),
            }
            for each in sorted(survived, key=lambda each: each["line"])
        ],
        "seconds": round(sum(each["seconds"] for each in verdicts), 1),
    }


def _tell(verdict: dict[str, Any], results: Path | None, progress: str) -> None:
    if results is not None:
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(verdict) + "\n")
    print(progress, verdict["verdict"], f"{verdict['seconds']} s", file=sys.stderr)


def modules_in(root: Path, names: Sequence[str]) -> list[str]:
    """The named modules and those in the named folders, without `__init__` and `__main__`."""
    files = [
        file
        for name in names
        for file in (
            sorted((root / name).rglob("*.py")) if (root / name).is_dir() else [root / name]
        )
    ]
    return [f.relative_to(root).as_posix() for f in files if f.stem not in ("__init__", "__main__")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all mutants of the modules of the command line and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "modules", nargs="+", help="files or folders, e.g. saccade/interp/heads/checks.py"
    )
    parser.add_argument("--tests", nargs="+", help="test files instead of the module's own")
    parser.add_argument(
        "--folder", action="store_true", help="also run the other tests of the folder"
    )
    parser.add_argument("--coverage", type=Path, help="data file of pytest-cov with test contexts")
    parser.add_argument("-k", default="", help="as in pytest, e.g. 'not slow'")
    parser.add_argument("--lines", type=int, nargs="+", help="only mutants on these lines")
    parser.add_argument("--sample", type=int, help="maximum number of mutants per module")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="seconds on top of 3 clean runs"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel mutants")
    parser.add_argument("--results", type=Path, help="JSONL file of verdicts, to resume")
    parser.add_argument(
        "--survivors", action="store_true", help="run only the survivors in --results"
    )
    parser.add_argument(
        "--equivalent", type=Path, default=EQUIVALENT, help="list of mutants to skip"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="root of the repository")
    asked = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up on SIGTERM too
    with tempfile.TemporaryDirectory(prefix="saccade-mutation-") as folder:
        benches = [Bench(asked.root, Path(folder) / str(n)) for n in range(asked.jobs)]
        judged, failed = [], []
        for module in modules_in(asked.root, asked.modules):
            try:
                judged.append(judge(module, asked, benches))
            except TestsFailError as error:
                failed.append(str(error))
    print(json.dumps(judged, indent=1))
    if failed:
        sys.exit("error: " + "\n".join(failed))


if __name__ == "__main__":
    main()
