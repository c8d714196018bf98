"""Builds of an atlas in processes of their own: killed at every stage, and shared by two.

What is judged is the command itself: the folder it writes, byte by byte.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECONDS = 300  # on a machine that has much else to do
# The command, with every step named as it begins, no wait between saves, and a stop: a step in
# which it waits for a file to appear.
DRIVER = """
import sys, time
from pathlib import Path
from saccade.cli.main import main
from saccade.interp.atlas import atlas_parts, build, sequences
from saccade.interp.atlas.atlas import Atlas
from saccade.interp.lenses import gather

gather.EVERY_SECONDS = gather.PAUSE_OVER_WRITING = 0
stop, counts = sys.argv[1], {}

def named(name, holder, function):
    plain = getattr(holder, function)
    def step(*given, **options):
        counts[name] = counts.get(name, -1) + 1
        here = f"{name} {counts[name]}"
        print("step", here, file=sys.stderr, flush=True)
        while here == stop and not Path(__file__).with_name("go on").exists():
            time.sleep(0.01)
        return plain(*given, **options)
    setattr(holder, function, step)

named("scan", build.Scan, "add")
named("sequences", sequences, "_add")
named("roles", atlas_parts, "find_roles")
named("composition", atlas_parts, "head_composition")
named("paths", atlas_parts, "measured_paths")
named("save", Atlas, "save")
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def command(stories, texts, chance_lenses, tmp_path_factory):
    """The words of `saccade atlas build` without its output folder."""
    folder = tmp_path_factory.mktemp("lens")
    chance_lenses().save(folder / "lens")
    settings = {"tokens": 1200, "window": 48, "every": 12, "lens": folder / "lens"}
    given = {"model": stories.name, **settings}
    corpora = [word for text in texts for word in ("--corpus", text)]
    return ["atlas", "build", *corpora, *(str(x) for k, v in given.items() for x in (f"--{k}", v))]


def environment(cache):
    own = {"SACCADE_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own}


def start(words, cache):
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env=environment(cache),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """The steps that a process ran, which ended well."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert "positions, attention over" in out
    return steps_of(err.splitlines())


def steps_of(lines):
    return [line.removeprefix("step ") for line in lines if line.startswith("step ")]


def killed_in(step, driver, command, cache):
    """Starts the command and kills it while it waits in a step; the steps up to there."""
    with start([driver, step, *command], cache) as process:
        lines = []
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            if steps_of(lines[-1:]) == [step]:
                break
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SECONDS)
    assert process.returncode == -signal.SIGKILL, "\n".join(lines)
    return steps_of(lines)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory):
    """The files of a build in one go, and its steps."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (driver := folder / "driver.py").write_text(DRIVER)
    with start([driver, "", *command, "--out", folder / "atlas"], folder / "cache") as process:
        steps = ended(process)
    return contents(folder / "atlas"), steps


def test_a_build_killed_at_every_stage_goes_on_and_ends_in_the_same_bytes(
    command, undisturbed, tmp_path
):
    (driver := tmp_path / "driver.py").write_text(DRIVER)
    cache, out = tmp_path / "cache", tmp_path / "atlas"
    command = [*command, "--out", str(out)]
    files, every = undisturbed
    kills = ["scan 3", "sequences 1", "roles 0", "composition 0", "paths 0", "save 0"]
    done = 0  # the steps whose results were kept
    for kill in kills:
        # The steps are counted anew in each process: what is left of the stage, and the next ones.
        name, number = kill.split()
        expected = [step.split()[0] for step in every[done:]]
        found = killed_in(kill, driver, command, cache)
        assert not out.exists()
        assert [step.split()[0] for step in found] == expected[: len(found)]
        assert found[-1] == kill and found.count(f"{name} {number}") == 1
        done += len(found) - 1
        if name == "paths":  # measured together with the composition by weights
            done -= 1
    assert len(list((cache / "unfinished").iterdir())) == 1
    with start([driver, "", *command], cache) as process:
        assert ended(process) == ["save 0"]
    assert contents(out) == files
    assert not list((cache / "unfinished").iterdir())


def test_two_processes_write_the_bytes_of_one(command, undisturbed, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*torchrun, "-m", "saccade", *command, "--out", tmp_path / "atlas"]
    with start(words, tmp_path / "cache") as process:
        ended(process)
    assert contents(tmp_path / "atlas") == undisturbed[0]
    assert not list((tmp_path / "cache" / "unfinished").iterdir())
