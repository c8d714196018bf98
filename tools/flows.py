"""Count the files that a reader opens to follow one flow through the package.

    python tools/flows.py --model FOLDER                 # every flow, as JSON
    python tools/flows.py read --files --model FOLDER    # with the files of one flow

Runs each flow on a small model or recipe and records the files of the package in which a function
is called, in every thread. Modules are imported first, so code that runs on import does not count.
A flow starts at a command (or a request to the viewer) and ends with its output.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import saccade
from saccade.cli.main import main as command

PACKAGE = Path(saccade.__file__).resolve().parent
PROMPT = "One day, a little girl named Lily found a"
MOST = {"read": 32, "lens fit": 28, "train": 28, "click": 22, "guard score": 21}
"""The largest number of files per flow; printed next to the count. A reading measures effects and
reads lenses: before there were effects it opened 20. A guard runs prompts in batches, to its own
depth, and shows the heads of an alarm."""


@contextlib.contextmanager
def files_called() -> Iterator[set[str]]:
    """The files of the package in which functions are called inside the block."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            called.add(frame.f_code.co_filename)

    found: set[str] = set()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        inside = (Path(name) for name in called if name.startswith(str(PACKAGE)))
        found.update(each.relative_to(PACKAGE).as_posix() for each in inside)


def run(*arguments: object) -> None:
    """Run a command of saccade in this process, silently."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = command([str(each) for each in arguments])
    if code != 0:
        sys.exit(f"error: saccade {' '.join(map(str, arguments))} ended with {code}")


def read(model: Path, folder: Path) -> set[str]:
    """`saccade read` of a sentence, with fitted lenses.

    Not the first reading of the model: the mean activations that replace a head are in the cache.
    """
    with files_called() as files:
        run("read", PROMPT, "--model", model, "--lens", folder / "lens")
    return files


def lens_fit(model: Path, folder: Path) -> set[str]:
    """`saccade lens fit --method polish` on a text file."""
    with files_called() as files:
        run(*_fit(model, folder), "--method", "polish", "--out", folder / "polished")
    return files


def train(_: Path, folder: Path) -> set[str]:
    """`saccade train ram-mnist`, then `saccade trace` with its animation."""
    small = ("steps=4", "warmup=1", "validate_steps=4", "log_steps=2", "minutes=0")
    settings = [word for setting in small for word in ("--set", setting)]
    with files_called() as files:
        run("train", "ram-mnist", *settings, "--out", folder / "ram")
        run("trace", folder / "ram", "7", "--gif", folder / "ram.gif")
    return files


def click(model: Path, folder: Path) -> set[str]:
    """A click on a head in the viewer: from the request to the JSON of its card."""
    from fastapi.testclient import TestClient

    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.viewer.app import make_app
    from saccade.viewer.security import Address
    from saccade.viewer.session import Session
    from saccade.viewer.worker import OpenedModel, ViewConfig

    loaded = open_model(model)
    opened = OpenedModel(model=loaded, lenses={"lens": load_lenses(folder / "lens", loaded)})
    question = {"text": PROMPT, "layer": 1, "head": 2}
    with files_called() as files:  # the threads of the server start in this block
        session = Session(ViewConfig(has_model=False))
        session.use(opened)
        client = TestClient(make_app(session, Address(port=8000)), base_url="http://127.0.0.1:8000")
        with client:
            reply = client.post("/api/head", json=question)
    session.close()
    if reply.status_code != 200:
        sys.exit(f"error: the viewer answered {reply.text}")
    return files


def guard_score(model: Path, folder: Path) -> set[str]:
    """`saccade guard score` of a prompt, with a fitted guard."""
    with files_called() as files:
        guard = ("--guard", folder / "guard", "--lens", folder / "lens")
        run("guard", "score", PROMPT, "--model", model, *guard)
    return files


FLOWS: dict[str, Callable[[Path, Path], set[str]]] = {
    "read": read,
    "lens fit": lens_fit,
    "train": train,
    "click": click,
    "guard score": guard_score,
}


def prepare(model: Path, folder: Path, flows: Sequence[str]) -> None:
    """Create the inputs of the flows and import all modules."""
    for module in pkgutil.walk_packages(saccade.__path__, "saccade."):
        if module.name != "saccade.__main__":
            importlib.import_module(module.name)
    (folder / "text.txt").write_text(f"{PROMPT} ball. She was happy. " * 400, encoding="utf-8")
    run(*_fit(model, folder), "--out", folder / "lens")
    if "read" in flows:
        run("read", PROMPT, "--model", model, "--lens", folder / "lens")
    if "guard score" in flows:
        prompts = folder / "prompts.txt"
        prompts.write_text("".join(f"{PROMPT} ball {n} times.\n" for n in range(40)), "utf-8")
        place = ("--lens", folder / "lens", "--out", folder / "guard")
        run("guard", "fit", prompts, "--model", model, *place)


def _fit(model: Path, folder: Path) -> tuple[object, ...]:
    text = ("--corpus", folder / "text.txt", "--tokens", 2048, "--window", 32, "--rows", 8)
    return ("lens", "fit", "--model", model, *text)


def count(model: Path, flows: Sequence[str]) -> dict[str, set[str]]:
    """The files of each flow."""
    with tempfile.TemporaryDirectory(prefix="saccade-flows-") as folder:
        prepare(model, Path(folder), flows)
        return {name: FLOWS[name](model, Path(folder)) for name in flows}


def main(arguments: Sequence[str] | None = None) -> None:
    """Count the files of the flows on the command line and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("flows", nargs="*", help=f"from {', '.join(FLOWS)}. Default: all")
    parser.add_argument("--files", action="store_true", help="also list the files")
    parser.add_argument("--model", type=Path, required=True, help="folder of a small model")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.flows if name not in FLOWS]:
        parser.error(f"no flow {unknown[0]!r}: there are {', '.join(FLOWS)}")
    found = count(asked.model, asked.flows or list(FLOWS))
    told = {
        name: {"files": len(files), "most": MOST[name]}
        | ({"names": sorted(files)} if asked.files else {})
        for name, files in found.items()
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
