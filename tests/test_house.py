"""The house keeps its own rules: which way imports point, what is never used, what loads late."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "saccade"

# From the top of the house to its floor; a room imports from rooms below it, and from itself.
HOUSE = [
    *("cli", "viewer"),
    *("investigations", "lenses", "heads"),
    *("recipes", "training", "models", "decoding", "objectives", "tasks"),
    *("metrics", "cells", "sensors", "memories", "attention"),
    *("trace", "processes", "processor", "store", "errors"),
]
READING_WING = {"investigations", "lenses", "heads"}
MODELS_WING = set(HOUSE[HOUSE.index("recipes") : HOUSE.index("trace")])
DOORS = {"__init__", "__main__"}  # they lead everywhere, and nobody goes through them to go up
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
NAMELESS = {"util", "utils", "common", "helper", "helpers", "misc"}

MODULES = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = sorted(
    file
    for folder in ("saccade", "tests", "bench", "tools")
    for file in (ROOT / folder).rglob("*.py")
)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Every imported name in full, also those inside functions and type-checking blocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_entered(tree: ast.AST) -> Iterator[str]:
    """The rooms of saccade a module imports from; a public name counts as its home."""
    import saccade

    homes = {name: home for home, names in saccade._HOMES.items() for name in names}
    for target in imports(tree):
        first, _, rest = target.partition(".")
        if first == "saccade" and rest:
            yield homes.get(rest, target).split(".")[1]


def breaches(room: str, tree: ast.AST) -> list[str]:
    if room in DOORS:
        return []
    wrong = []
    for other in rooms_entered(tree):
        if other not in HOUSE or other == room:
            continue
        if HOUSE.index(other) < HOUSE.index(room):
            wrong.append(f"{room} -> {other} points up")
        for wing, across in ((READING_WING, MODELS_WING), (MODELS_WING, READING_WING)):
            if room in wing and other in across:
                wrong.append(f"{room} -> {other} crosses from one wing into the other")
    return wrong


def pickling(tree: ast.AST) -> list[str]:
    found = [name for name in imports(tree) if name.split(".")[0] in PICKLERS]
    found += [name for name in imports(tree) if name in ("torch.load", "torch.save")]
    torch_names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "torch"
    }
    return found + [
        f"torch.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "save")
        and isinstance(node.value, ast.Name)
        and node.value.id in torch_names
    ]


def imported_when_loaded(node: ast.AST) -> Iterator[str]:
    """Names imported when the module is: not those in functions or for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (name for other in child.orelse for name in imports(other))
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield from imports(child)
        else:
            yield from imported_when_loaded(child)


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_imports_point_down_the_house_and_never_across_it(file):
    assert not breaches(room_of(file), ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_every_module_lives_in_a_room_of_the_house(file):
    assert room_of(file) in {*HOUSE, *DOORS}


@pytest.mark.parametrize("file", EVERYTHING, ids=name_of)
def test_nothing_reads_or_writes_pickle(file):
    assert not pickling(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", EVERYTHING, ids=name_of)
def test_every_file_is_named_for_what_it_holds(file):
    assert not NAMELESS & {*file.relative_to(ROOT).with_suffix("").parts}


@pytest.mark.parametrize(
    "file", [file for file in MODULES if room_of(file) in {"cli", *DOORS, "errors"}], ids=name_of
)
def test_a_command_does_not_import_torch_before_it_runs(file):
    heavy = {"torch", "transformers", "safetensors", "matplotlib", "datasets"}
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert not [name for name in imported_when_loaded(tree) if name.split(".")[0] in heavy]


@pytest.mark.parametrize(
    ("room", "source", "caught"),
    [
        ("store", "from saccade.heads import capture", "store -> heads points up"),
        ("store", "def f():\n    import saccade.lenses.fit", "store -> lenses points up"),
        ("heads", "from saccade import fit_lenses", "heads -> lenses points up"),
        ("lenses", "from saccade.cells import lstm", "lenses -> cells crosses"),
        ("attention", "from saccade import heads", "attention -> heads points up"),
    ],
)
def test_the_test_of_imports_catches_what_it_should(room, source, caught):
    found = breaches(room, ast.parse(source))
    assert any(caught in breach for breach in found), found


def test_the_test_of_imports_lets_the_right_ones_pass():
    source = "from saccade.heads import x\nfrom saccade.errors import y\nimport saccade.lenses.z"
    assert not breaches("lenses", ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "import torch as t\nt.load('x')",
        "from torch import save",
    ],
)
def test_the_test_of_pickle_catches_what_it_should(source):
    assert pickling(ast.parse(source))


def modules_loaded_by(*command: str) -> set[str]:
    """What a fresh Python imports for a command, told by Python itself (-X importtime)."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(re.findall(r"^import time:.*\|\s*(\S+)$", result.stderr, flags=re.MULTILINE))


def test_importing_saccade_does_not_import_torch():
    loaded = modules_loaded_by("-c", "import saccade, saccade.store; saccade.store.cache_dir")
    assert "saccade.errors" in loaded
    assert not loaded & {"torch", "transformers", "numpy"}


@pytest.mark.skipif(not (PACKAGE / "cli" / "main.py").exists(), reason="no command line yet")
def test_asking_for_help_does_not_import_torch():
    loaded = modules_loaded_by("-m", "saccade", "--help")
    assert "saccade.cli.main" in loaded
    assert not loaded & {"torch", "transformers"}


@pytest.mark.parametrize("home", ["saccade.heads", "saccade.lenses"])
def test_every_public_name_can_be_had(home):
    import saccade

    if not (ROOT / home.replace(".", "/")).is_dir():
        pytest.skip(f"{home} is not built yet")
    for name in saccade._HOMES[home]:
        assert getattr(saccade, name) is not None


def test_public_names_are_listed_once_and_the_unknown_is_refused():
    import saccade

    late = [name for names in saccade._HOMES.values() for name in names]
    assert len(late) == len(set(late))
    assert set(late) <= set(saccade.__all__) <= set(dir(saccade))
    errors = {name for name in dir(saccade.errors) if name.endswith("Error")}
    assert errors <= set(saccade.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'open_modle'"):
        saccade.open_modle  # noqa: B018


def mapped_folders(readme: str) -> set[str]:
    """Folders in the README's file map: the fenced block with a line `saccade/`, one a line."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL):
        if re.search(r"^saccade/(\s|$)", block, flags=re.MULTILINE):
            inside = re.split(r"^saccade/[^\n]*\n", block, maxsplit=1, flags=re.MULTILINE)[1]
            lines = re.split(r"^\S", inside, maxsplit=1, flags=re.MULTILINE)[0]
            return set(re.findall(r"^\s+(\w+)/(?:\s|$)", lines, flags=re.MULTILINE))
    return set()


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="no README yet")
def test_the_readme_maps_every_folder_and_no_other():
    folders = {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] not in "_."
    }
    assert mapped_folders((ROOT / "README.md").read_text(encoding="utf-8")) == folders


def test_the_map_is_found_in_a_readme():
    tree = "saccade/\n  cli/   x\n  heads/  y, see a/b\ntests/\n  z/\n"
    readme = f"```\n$ make demo\n```\n```text\n{tree}```"
    assert mapped_folders(readme) == {"cli", "heads"}
