"""Rules of the code base: direction of imports, forbidden modules, lazy imports."""

import ast
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "saccade"

# The layers from top to bottom: ROOF, the two wings INTERP and ZOO, FLOOR. Imports point down these
# lists only, the wings never import each other, and the floor imports neither.
ROOF = ["cli", "viewer"]
INTERP = [
    *("interp.atlas", "interp.studies", "interp.readings", "interp.effects", "interp.lenses"),
    "interp.heads",
]
ZOO = [
    *("zoo.recipes", "zoo.training", "zoo.models", "zoo.decoding", "zoo.objectives", "zoo.tasks"),
    *("zoo.metrics", "zoo.cells", "zoo.sensors", "zoo.memories", "zoo.attention", "zoo.fast"),
]
# The renderer is in the folder of its page, but only handles JSON: readings and traces
# import it, and it imports neither.
FLOOR = ["trace", "viewer.export", "distributed", "store", "errors"]
HOUSE = [*ROOF, *INTERP, *ZOO, *FLOOR]
DOORS = {"__init__", "__main__", "interp", "zoo"}  # they have no code of their own
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
NAMELESS = {"util", "utils", "common", "helper", "helpers", "misc"}

MOST_MODULES = 290
# What was added later has limits of its own: files and folders, and how many modules they hold.
LATER = [
    (("interp/studies/roles",), 8),
    (
        (
            *("interp/atlas", "cli/atlas_commands.py", "viewer/atlas_service.py"),
            *("viewer/atlas_site.py", "interp/heads/head_weights.py", "interp/effects/edge.py"),
            "cli/circuit_commands.py",
        ),
        24,
    ),
    (("cli/doctor.py", "interp/readings/model_check.py"), 2),
    (
        ("interp/studies/suites", "interp/studies/bias/silence_cost.py", "cli/suite_commands.py"),
        20,
    ),
]
MEDIAN_LINES = 150
SHORT_LINES, MOST_SHORT = 40, 15
IMPORT_SHARE = 0.07
MOST_PARAGRAPHS = 60
# Names that a subpackage may share with another one.
SHARED_NAMES = {"__init__", "config", "report", "measure"}
# Nouns of the field that end like a gerund or a participle.
NOUNS = {
    *("addressing", "answering", "handwriting", "loading", "reading", "readings", "rescoring"),
    *("embedding", "distributed"),  # as in torch.distributed
}
# Participles without the ending -ed.
PARTICIPLES = {
    *("begun", "built", "done", "drawn", "found", "given", "gone", "held", "kept", "known", "left"),
    *("made", "met", "said", "seen", "sent", "shown", "taken", "taught", "told", "written"),
}

MODULES = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = sorted(
    file
    for folder in ("saccade", "tests", "bench", "tools")
    for file in (ROOT / folder).rglob("*.py")
)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def room_of(dotted: str) -> str:
    """The folder of a module by its dotted name in saccade: `interp.lenses.fit` is in `lenses`."""
    first, _, rest = dotted.partition(".")
    inner = f"{first}.{rest.split('.')[0]}"
    return inner if rest and (first in ("interp", "zoo") or inner in FLOOR) else first


def dotted(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[str]:
    """All imported names in full, also those inside functions and type-checking blocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def homes() -> dict[str, str]:
    """The module of each public name, from the stub."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: f"saccade.{node.module}.{alias.name}"
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def rooms_entered(tree: ast.AST) -> Iterator[str]:
    """The folders of saccade a module imports from; a public name counts as its module."""
    public = homes()
    for target in imports(tree):
        first, _, rest = target.partition(".")
        if first == "saccade" and rest:
            yield room_of(public.get(rest, target).partition(".")[2])


def breaches(room: str, tree: ast.AST) -> list[str]:
    if room in DOORS:
        return []
    wrong = []
    for other in rooms_entered(tree):
        if other not in HOUSE or other == room:
            continue
        if {room.split(".", maxsplit=1)[0], other.split(".")[0]} == {"interp", "zoo"}:
            wrong.append(f"{room} -> {other} crosses from one wing into the other")
        elif HOUSE.index(other) < HOUSE.index(room):
            wrong.append(f"{room} -> {other} points up")
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
    """Names imported when the module is loaded: not in functions or only for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (name for other in child.orelse for name in imports(other))
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield from imports(child)
        else:
            yield from imported_when_loaded(child)


def subclasses_of_function(tree: ast.AST) -> list[str]:
    """Classes with a hand-written gradient: subclasses of `torch.autograd.Function`."""
    own = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.autograd")
        for alias in node.names
        if alias.name == "Function"
    }
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in map(ast.unparse, node.bases)
        if base in own or base.endswith(("autograd.Function", "autograd.function.Function"))
    ]


def kernels(tree: ast.AST) -> list[str]:
    """Calls of backward kernels, and torch operations with `out=`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and "backward" in node.attr:
            name = ast.unparse(node)
            found |= {name} if name.startswith("torch.ops.") else set()
        elif isinstance(node, ast.Call) and any(word.arg == "out" for word in node.keywords):
            name = ast.unparse(node.func)
            found |= {f"{name}(out=...)"} if name.startswith("torch.") else set()
    return sorted(found)


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def functions_of(file: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods of a module by their dotted names."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef))
            yield from ((f"{node.name}.{method.name}", method) for method in methods)


def chooses(plain: str, fast: str) -> bool:
    """True if a function or method, by its full dotted name, calls `is_fast`, and its module
    imports the fast form.
    """
    parts = plain.split(".")
    for end in range(len(parts) - 1, 0, -1):
        file = ROOT.joinpath(*parts[:end]).with_suffix(".py")
        if file.is_file():
            function = dict(functions_of(file)).get(".".join(parts[end:]))
            tree = ast.parse(file.read_text(encoding="utf-8"))
            return (
                function is not None and "is_fast" in names_in(function) and fast in names_in(tree)
            )
    return False


def lines_of(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def import_lines(tree: ast.AST) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def paragraphs() -> dict[str, str]:
    """The modules that a single other one imports, in the same folder: the importer of each."""
    modules = {f"saccade.{dotted(file)}": file for file in MODULES}
    importers: dict[str, set[str]] = {name: set() for name in modules}
    for name, file in modules.items():
        for target in imports(ast.parse(file.read_text(encoding="utf-8"))):
            found = target if target in modules else target.rpartition(".")[0]
            if found in modules and found != name:
                importers[found].add(name)
    return {
        module: one
        for module, found in importers.items()
        if modules[module].name != "__init__.py" and len(found) == 1
        for one in found
        if modules[one].parent == modules[module].parent
    }


def is_verbal(stem: str) -> bool:
    """True if a file name ends with a gerund or a participle: `spotting`, `text_opened`."""
    last = stem.rpartition("_")[2]
    return last not in NOUNS and (last.endswith(("ing", "ed")) or last in PARTICIPLES)


def functions_by_module() -> dict[str, set[str]]:
    """Functions, methods and classes of the modules by the last part of the module's name."""
    found: dict[str, set[str]] = {}
    for file in MODULES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        found.setdefault(file.stem, set()).update(names)
    return found


def functions_by_string(tree: ast.AST, known: dict[str, set[str]]) -> list[str]:
    """Strings `module.function`, `module:function`, and `getattr` on a module of saccade."""
    modules = {
        alias.asname or alias.name.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).startswith("saccade")
        and alias.name.rpartition(".")[2] in known
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = re.fullmatch(r"(?:\w+\.)*(\w+)[.:](\w+)", node.value)
            if parts and parts[2] in known.get(parts[1], ()):
                found.append(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "methodcaller"):
            of = ast.unparse(node.args[0])
            if of in modules or ast.unparse(node.func) == "methodcaller":
                found.append(ast.unparse(node))
    return found


def parsed(files: list[Path]) -> Iterator[tuple[str, ast.Module]]:
    for file in files:
        yield name_of(file), ast.parse(file.read_text(encoding="utf-8"))


def test_imports_point_down_the_house_and_never_across_it():
    wrong = {
        name_of(file): found
        for file in MODULES
        if (found := breaches(room_of(dotted(file)), ast.parse(file.read_text(encoding="utf-8"))))
    }
    assert not wrong


def test_every_module_lives_in_a_room_of_the_house():
    rooms = {room_of(dotted(file)) for file in MODULES}
    assert rooms <= {*HOUSE, *DOORS}
    assert rooms >= {*ROOF, *ZOO, *FLOOR}, "a folder of the list is missing"


def test_nothing_reads_or_writes_pickle():
    assert not {name: found for name, tree in parsed(EVERYTHING) if (found := pickling(tree))}


def test_gradients_written_by_hand_stand_in_zoo_fast_alone():
    elsewhere = [file for file in MODULES if room_of(dotted(file)) != "zoo.fast"]
    wrong = {
        name: found
        for name, tree in parsed(elsewhere)
        if (
            found := subclasses_of_function(tree)
            + (kernels(tree) if name.startswith("saccade/zoo/") else [])
        )
    }
    assert not wrong, "move these to saccade/zoo/fast, and leave the plain form in their place"


def test_every_fast_form_names_the_plain_form_that_chooses_it():
    """A function with a hand-written gradient contains its plain form or names it."""
    wrong, n_found = [], 0
    for file in sorted((PACKAGE / "zoo" / "fast").glob("*.py")):
        by_hand = set(subclasses_of_function(ast.parse(file.read_text(encoding="utf-8"))))
        for name, function in functions_of(file):
            used = names_in(function)
            if name.split(".")[0] in by_hand or not by_hand & used:
                continue
            n_found += 1
            plain = re.search(r"Plain form: `([\w.]+)`", ast.get_docstring(function) or "")
            if "is_fast" not in used and not (plain and chooses(plain[1], name)):
                wrong.append(f"{name_of(file)}: {name}")
    assert n_found >= 10
    assert not wrong


def test_every_file_is_named_for_what_it_holds():
    parts = {name_of(file): {*file.relative_to(ROOT).with_suffix("").parts} for file in EVERYTHING}
    assert not [name for name, words in parts.items() if NAMELESS & words]


def test_the_package_has_few_modules_and_they_are_no_paragraphs():
    sizes = {name_of(file): lines_of(file) for file in MODULES if file.name != "__init__.py"}
    short = {name: size for name, size in sizes.items() if size < SHORT_LINES}
    n_later = 0
    for parts, most in LATER:
        paths = [PACKAGE / part for part in parts]
        found = [file for file in MODULES if any(file.is_relative_to(path) for path in paths)]
        assert len(found) <= most, found
        n_later += len(found)
    assert len(MODULES) - n_later <= MOST_MODULES
    assert statistics.median(sizes.values()) >= MEDIAN_LINES
    assert len(short) <= MOST_SHORT, short


def test_few_lines_are_imports():
    n_lines = {file: lines_of(file) for file in MODULES}
    shares = {
        name_of(file): import_lines(ast.parse(file.read_text(encoding="utf-8"))) / n_lines[file]
        for file in MODULES
        if n_lines[file]
    }
    total = sum(shares[name_of(file)] * size for file, size in n_lines.items() if size)
    most = sorted(shares, key=lambda name: -shares[name])[:10]
    assert total / sum(n_lines.values()) < IMPORT_SHARE, most


def test_few_modules_serve_one_neighbour_only():
    found = paragraphs()
    assert "saccade.interp.heads.checks" in found  # only loading.py and its like import it
    assert len(found) <= MOST_PARAGRAPHS, found


def test_no_two_modules_have_the_same_name():
    stems = Counter(file.stem for file in MODULES)
    twice = {stem for stem, n in stems.items() if n > 1} - SHARED_NAMES
    assert not [name_of(file) for file in MODULES if file.stem in twice]


def test_file_names_are_nouns():
    assert not [name_of(file) for file in MODULES if is_verbal(file.stem)]


def test_no_string_names_a_function():
    known = functions_by_module()
    assert not {
        name: found for name, tree in parsed(MODULES) if (found := functions_by_string(tree, known))
    }


@pytest.mark.parametrize("stem", ["spotting", "opened", "text_opened", "kept", "held"])
def test_the_test_of_file_names_catches_what_it_should(stem):
    assert is_verbal(stem)
    assert not is_verbal("closed_form") and not is_verbal("reading")


@pytest.mark.parametrize(
    "source",
    [
        "Later('ram.ram_job')",
        "x = {'job': 'saccade.zoo.recipes.ram:ram_job'}",
        "from saccade.zoo.recipes import ram\ngetattr(ram, name)",
        "import saccade.zoo.recipes.ram as ram\ngetattr(ram, 'ram_job')",
        "methodcaller('evaluate')(recipe)",
    ],
)
def test_the_test_of_functions_by_string_catches_what_it_should(source):
    known = {"ram": {"ram_job"}}
    assert functions_by_string(ast.parse(source), known)
    fine = "from saccade.zoo.recipes import ram\nram.ram_job()\nx = 'ram.json'\ngetattr(y, 'z')"
    assert not functions_by_string(ast.parse(fine), known)


def test_a_command_does_not_import_torch_before_it_runs():
    heavy = {"torch", "transformers", "safetensors", "matplotlib", "datasets"}
    early = [file for file in MODULES if room_of(dotted(file)) in {"cli", *DOORS, "errors"}]
    assert len(early) > 10
    assert not {
        name: found
        for name, tree in parsed(early)
        if (found := [n for n in imported_when_loaded(tree) if n.split(".")[0] in heavy])
    }


@pytest.mark.parametrize(
    ("room", "source", "caught"),
    [
        ("store", "from saccade.interp.heads import capture", "store -> interp.heads points up"),
        ("store", "def f():\n    import saccade.zoo.tasks.x", "store -> zoo.tasks points up"),
        ("interp.heads", "from saccade import fit_lenses", "heads -> interp.lenses points up"),
        ("interp.lenses", "from saccade.zoo.cells import lstm", "lenses -> zoo.cells crosses"),
        ("zoo.attention", "from saccade.interp import heads", "-> interp.heads crosses"),
        ("zoo.fast", "import saccade.zoo.models.ram", "zoo.fast -> zoo.models points up"),
        ("trace", "from saccade.viewer.app import make_app", "trace -> viewer points up"),
        ("interp.lenses", "from saccade.viewer import server", "lenses -> viewer points up"),
        ("viewer.export", "from saccade.viewer import app", "viewer.export -> viewer points up"),
        ("viewer.export", "from saccade import Trace", "viewer.export -> trace points up"),
    ],
)
def test_the_test_of_imports_catches_what_it_should(room, source, caught):
    found = breaches(room, ast.parse(source))
    assert any(caught in breach for breach in found), found


def test_the_test_of_imports_lets_the_right_ones_pass():
    source = (
        "from saccade.interp.heads import x\nfrom saccade.errors import y\nimport saccade.trace.z"
    )
    assert not breaches("interp.lenses", ast.parse(source))
    for room in ("interp.lenses", "trace", "viewer", "cli"):
        assert not breaches(room, ast.parse("from saccade.viewer.export import show"))


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


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nclass A(torch.autograd.Function): pass",
        "from torch import autograd\nclass A(autograd.Function): pass",
        "from torch.autograd import Function as F\nclass A(F): pass",
        "from torch.autograd.function import Function\nclass A(Function): pass",
    ],
)
def test_the_test_of_gradients_catches_what_it_should(source):
    assert subclasses_of_function(ast.parse(source)) == ["A"]
    assert not subclasses_of_function(ast.parse("class Function: pass\nclass A(Function): pass"))


def test_the_test_of_kernels_catches_what_it_should():
    source = "torch.mm(a, b, out=c)\ng = torch.ops.aten.tanh_backward\nnp.cumsum(a, out=c)"
    assert kernels(ast.parse(source)) == [
        "torch.mm(out=...)",
        "torch.ops.aten.tanh_backward",
    ]


def modules_loaded_by(*command: str) -> set[str]:
    """The modules that a new Python process imports for a command (-X importtime)."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(re.findall(r"^import time:.*\|\s*(\S+)$", result.stderr, flags=re.MULTILINE))


def test_importing_saccade_does_not_import_torch():
    loaded = modules_loaded_by(
        "-c", "import saccade; saccade.ModelError; from saccade.store.atomic import cache_dir"
    )
    assert "saccade.store.atomic" in loaded
    assert not loaded & {"torch", "transformers", "numpy"}


@pytest.mark.parametrize("command", [(), ("lens", "fit"), ("lens", "merge")])
def test_asking_for_help_does_not_import_torch(command):
    loaded = modules_loaded_by("-m", "saccade", *command, "--help")
    assert "saccade.cli.main" in loaded
    assert not loaded & {"torch", "transformers"}


def test_every_public_name_can_be_had_and_the_unknown_is_refused():
    import saccade

    public = homes()
    assert set(public) <= set(saccade.__all__) <= set(dir(saccade))
    for name in public:
        assert getattr(saccade, name) is not None
    errors = {name for name in dir(saccade.errors) if name.endswith("Error")}
    assert errors <= set(public)
    wings = {home.split(".")[1] for home in public.values()}
    assert {"interp", "zoo", "trace"} <= wings
    with pytest.raises(AttributeError, match="open_modle"):
        saccade.open_modle  # noqa: B018


def mapped_folders(page: str) -> set[str]:
    """Folders in the map of a page: the fenced block with a line `saccade/`, one per line."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        if re.search(r"^saccade/(\s|$)", block, flags=re.MULTILINE):
            inside = re.split(r"^saccade/[^\n]*\n", block, maxsplit=1, flags=re.MULTILINE)[1]
            lines = re.split(r"^\S", inside, maxsplit=1, flags=re.MULTILINE)[0]
            return set(re.findall(r"^\s+(\w+)/(?:\s|$)", lines, flags=re.MULTILINE))
    return set()


def test_the_architecture_page_maps_every_folder_and_no_other():
    named = mapped_folders((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert named == {
        *folders_of(PACKAGE),
        *folders_of(PACKAGE / "interp"),
        *folders_of(PACKAGE / "zoo"),
    }


def folders_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir() and path.name[0] not in "_."}


def test_the_map_is_found_in_a_page():
    tree = "saccade/\n  cli/   x\n  heads/  y, see a/b\ntests/\n  z/\n"
    readme = f"```\n$ make demo\n```\n```text\n{tree}```"
    assert mapped_folders(readme) == {"cli", "heads"}


def test_the_readmes_of_folders_name_files_that_are_there():
    missing = [
        f"{name_of(readme)}: {name}"
        for readme in PACKAGE.rglob("README.md")
        for name in re.findall(r"`(\w+\.py)`", readme.read_text(encoding="utf-8"))
        if not (readme.parent / name).is_file()
    ]
    assert not missing


def names_a_device(node: ast.AST) -> bool:
    is_name = isinstance(node, ast.Constant) and node.value in ("cpu", "cuda", "mps", "xpu")
    return is_name or (isinstance(node, ast.Attribute) and node.attr == "cuda")


def test_no_recipe_model_or_study_names_a_device():
    rooms = {"zoo.recipes", "zoo.models", "interp.studies"}
    wrong = [
        f"{name}:{node.lineno}"
        for name, tree in parsed([file for file in MODULES if room_of(dotted(file)) in rooms])
        for node in ast.walk(tree)
        if names_a_device(node)
    ]
    assert not wrong, "the loop and the reading code move tensors: " + ", ".join(wrong)
