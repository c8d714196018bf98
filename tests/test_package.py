"""What is installed: the wheel has the package and its data, and nothing else of the repository."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
OTHERS = ("tests", "bench", "docs", "tools", "examples")
FILES = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
NOT_DATA = {".py", ".pyc", ".md"}  # the readmes of folders are for those who read the code


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A source archive, and a wheel made from it, of a copy of the repository."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "repository"
    shutil.copytree(
        ROOT / "saccade", copy / "saccade", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    for name in OTHERS:  # a file of each is enough to see whether it gets in
        (copy / name).mkdir()
        (copy / name / f"test_{name}.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "out")],
        capture_output=True,
        text=True,
        cwd=copy,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "out"


def wheel_names(built: Path) -> set[str]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def source_names(built: Path) -> set[str]:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        return {each.name.partition("/")[2] for each in opened.getmembers() if each.isfile()}


def test_no_other_folder_is_inside(built):
    tops = {name.split("/")[0] for name in wheel_names(built)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"saccade"}
    assert not {name.split("/")[0] for name in source_names(built)} & {*OTHERS}


def test_all_modules_and_all_data_are_inside(built):
    files = {
        path.relative_to(ROOT).as_posix(): path.suffix
        for path in (ROOT / "saccade").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    data = {name for name, suffix in files.items() if suffix not in NOT_DATA}
    assert {"saccade/py.typed", "saccade/__init__.pyi", "saccade/zoo/recipes/index.json"} <= data
    assert any(name.startswith("saccade/viewer/page/") for name in data)
    wanted = data | {name for name, suffix in files.items() if suffix == ".py"}
    assert not wanted - wheel_names(built)
    assert not wanted - source_names(built)


def test_the_wheel_runs_from_its_own_files(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site")
    script = (
        "import saccade; from saccade.cli.main import main; from pathlib import Path;"
        "print(Path(saccade.__file__).parent.parent); main(['recipes', 'ram-mnist']);"
        "raise SystemExit(main(['--version']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert "ram-mnist" in done.stdout and "saccade 0." in done.stdout


def test_doctor_knows_every_optional_package():
    from saccade.cli.doctor import OPTIONAL

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    used = {
        requirement.split(">")[0]: extra
        for extra, requirements in extras.items()
        if extra not in ("dev", "docs")
        for requirement in requirements
    }
    assert {*used} <= {each.package for each in OPTIONAL}
    named = {each.install for each in OPTIONAL if each.install.startswith("saccade[")}
    assert named <= {f"saccade[{extra}]" for extra in extras}


def test_the_version_is_the_same_everywhere():
    import saccade

    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {saccade.__version__}\n" in citation


def test_the_hooks_before_a_commit_are_the_tools_of_make_test():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    entries = [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    recipes = (ROOT / "Makefile").read_text("utf-8")
    assert len(entries) == 3
    for entry in entries:
        tool = " ".join(word for word in entry.split() if not word.startswith("-"))
        assert tool.replace(".venv/bin", "$(BIN)") in recipes


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda f: f.name)
def test_a_workflow_or_form_is_valid_yaml_and_names_targets_of_make(file):
    found = yaml.safe_load(file.read_text("utf-8"))
    if file.parent.name == "workflows":
        assert found["jobs"] and found["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    runs = re.findall(r"run: make .*?([a-z-]+)$", file.read_text("utf-8"), re.MULTILINE)
    assert set(runs) <= targets
