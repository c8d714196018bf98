"""Scaling of the time and memory of lenses with the model: `python bench/growth.py [--quick]`.

Prints one JSON object: for each model the time of `fit`, `eval` and `read` relative to the model's
own forward pass on the same text in the same batches, and their peak memory above the loaded model.
The targets: a fit takes at most 1.3 forward passes, and at most 1.5 GB plus the size of the model
on top of the loaded model.

Every number comes from its own process, because peak memory is measured per process, and a plain
forward pass over a vocabulary of 262,144 tokens takes more memory than all the rest. Times are CPU
seconds of one thread, which exclude other work on the machine (`--threads 2` for wall-clock
seconds), the minimum of several alternating repetitions. `--models` takes folders or hub names;
unavailable models are listed as missing. Takes about an hour for the three default models.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from lens_fit import Sizes, texts
from torch import Tensor

import saccade
from saccade.distributed import Processes
from saccade.errors import SaccadeError
from saccade.interp.heads.model import DEFAULT_MODEL, LanguageModel
from saccade.interp.lenses.batches import Batch, CorpusBatches
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.evaluate import choose_positions, evaluate_lenses
from saccade.interp.lenses.fit import fit_on
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.lens_set import Lenses, load_lenses

MODELS = (
    str(Path(__file__).resolve().parents[2] / "shared" / "models" / "stories260K"),
    DEFAULT_MODEL,
    "google/gemma-3-270m",
)
PARTS = ("fit", "eval", "read")
ROWS = FitConfig().rows
PROMPT = "The old lighthouse keeper walked slowly down to the harbour, where he saw a small boat"
WANTED_FIT, WANTED_GB = 1.3, 1.5


@dataclass(frozen=True)
class Growth:
    """What one process measures: model, part and sizes."""

    model: str
    part: str
    lenses: str
    """A folder for the lenses: `fit` writes them, the other parts read them."""
    tokens: int
    positions: int
    repeats: int
    threads: int
    is_memory: bool
    """Peak memory instead of time."""

    def clock(self) -> float:
        """CPU seconds of this process with one thread, otherwise wall-clock seconds."""
        return time.process_time() if self.threads == 1 else time.perf_counter()

    def timed(self, work: Callable[[], Any]) -> float:
        """Duration of some work."""
        start = self.clock()
        work()
        return self.clock() - start


def run_plain(model: LanguageModel, windows: Tensor) -> None:
    """The plain forward pass, with its logits."""
    with torch.inference_mode():
        for ids in windows.split(ROWS):
            model.hf(ids)


@dataclass
class BesidePlain:
    """Batches that also time the plain forward pass, under the same load of the machine."""

    inner: CorpusBatches
    growth: Growth
    plain: float = 0.0
    each: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def read(self, index: int) -> Batch:
        """The plain forward pass, timed; then the batch."""
        windows = self.inner.corpus.windows[index * ROWS : (index + 1) * ROWS]
        if not self.growth.is_memory:
            self.plain += self.growth.timed(lambda: run_plain(self.inner.model, windows))
        return self.inner.read(index)


def fit(growth: Growth, model: LanguageModel, text: Corpus) -> tuple[float, float]:
    """Seconds of a fit and of the forward pass over its text."""
    # A new name each time, so that no interrupted fit is resumed.
    fingerprint = f"{text.fingerprint} {time.time_ns()}"
    text = Corpus(text.source, fingerprint, text.windows, n_bytes=text.n_bytes)
    batches = BesidePlain(CorpusBatches(model, text, ROWS), growth)
    config = FitConfig(tokens=growth.tokens)
    whole = growth.timed(
        lambda: fit_on(model, batches, config, processes=Processes(), save_to=growth.lenses)
    )
    return whole - batches.plain, batches.plain


def evaluate(growth: Growth, lenses: Lenses, text: Corpus) -> tuple[float, float]:
    """Seconds of an evaluation and of the forward pass over its windows."""
    windows, _ = choose_positions(lenses.model, text.windows, growth.positions)
    if growth.is_memory:
        plain = 0.0
    else:
        plain = growth.timed(lambda: run_plain(lenses.model, windows))
    own = growth.timed(lambda: evaluate_lenses(lenses, text, max_positions=growth.positions))
    return own, plain


def read(growth: Growth, lenses: Lenses) -> tuple[float, float]:
    """Seconds of a reading of one position, and of the forward pass over its text."""
    ids = lenses.model.encode(PROMPT)
    plain = growth.timed(lambda: run_plain(lenses.model, ids))
    return growth.timed(lambda: lenses.read(PROMPT)), plain


def measure(growth: Growth) -> dict[str, Any]:
    """One part of one model, in this process."""
    if growth.threads:
        torch.set_num_threads(growth.threads)
    model = saccade.open_model(growth.model)
    fitted, judged = texts(model, Sizes(tokens=growth.tokens, judged_tokens=growth.tokens))
    lenses = None if growth.part == "fit" else load_lenses(growth.lenses, model)
    with torch.inference_mode():
        model.hf(fitted.windows[:1], logits_to_keep=1)  # weights are only read from disk when used
    loaded = psutil.Process().memory_info().rss

    def once() -> tuple[float, float]:
        if lenses is None:
            return fit(growth, model, fitted)
        return evaluate(growth, lenses, judged) if growth.part == "eval" else read(growth, lenses)

    size = sum(each.nbytes for each in model.hf.parameters())
    if growth.is_memory:
        once()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024
        return {"size": size, "loaded": loaded, "peak": peak}
    if growth.part == "read":
        once()  # the first call is slower: it prepares caches
    own, plain = zip(*(once() for _ in range(growth.repeats)), strict=True)
    return {"size": size, "seconds": min(own), "plain": min(plain)}


def in_process(growth: Growth) -> dict[str, Any]:
    """Measure in a separate process."""
    # A new process: glibc keeps freed memory per thread, and the peak should be memory in use.
    done = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps(asdict(growth))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    return json.loads(done.stdout)


def figures(part: str, took: dict[str, Any], memory: dict[str, Any]) -> dict[str, Any]:
    """The metrics of one part: ratios, gigabytes, and whether they meet the targets."""
    extra = (memory["peak"] - memory["loaded"]) / 1e9
    ratio = took["seconds"] / took["plain"]
    found: dict[str, Any] = {
        "seconds": round(took["seconds"], 3),
        "forward_seconds": round(took["plain"], 3),
        "over_forward": round(ratio, 3),
        "peak_gb": round(memory["peak"] / 1e9, 3),
        "above_loaded_gb": round(extra, 3),
        "above_loaded_over_size": round(extra * 1e9 / memory["size"], 3),
        "is_memory_as_wanted": extra <= WANTED_GB + memory["size"] / 1e9,
    }
    if part == "fit":
        found["is_time_as_wanted"] = ratio <= WANTED_FIT
    return found


def grow(name: str, given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All parts of one model."""
    found: dict[str, Any] = {}
    for part in given.parts:
        common = {
            "model": name,
            "part": part,
            "lenses": str(work),
            "tokens": given.tokens,
            "positions": given.positions,
            "repeats": given.repeats,
            "threads": given.threads,
        }
        took = in_process(Growth(**common, is_memory=False))
        memory = in_process(Growth(**common, is_memory=True))
        found["size_gb"] = round(memory["size"] / 1e9, 3)
        found["loaded_gb"] = round(memory["loaded"] / 1e9, 3)
        found[part] = figures(part, took, memory)
        print(json.dumps({name: {part: found[part]}}), file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, help="folders or hub names")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument(
        "--tokens", type=int, default=FitConfig().tokens, help="number of tokens of the text"
    )
    parser.add_argument(
        "--positions", type=int, default=1024, help="number of positions that eval scores"
    )
    parser.add_argument("--repeats", type=int, default=2, help="repetitions; the minimum counts")
    parser.add_argument("--threads", type=int, default=1, help="number of threads; 0 for all cores")
    parser.add_argument("--lenses", type=Path, help="folder to store and reuse lenses")
    parser.add_argument(
        "--quick", action="store_true", help="1,024 tokens, 64 positions, one repetition"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(Growth(**json.loads(given.measure)))))
        return
    if given.quick:
        given.tokens, given.positions, given.repeats = 1024, 64, 1
    found: dict[str, Any] = {"tokens": given.tokens, "positions": given.positions, "missing": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            try:
                saccade.open_model(name)
            except SaccadeError as error:
                found["missing"].append(f"{name}: {error}")
                continue
            work = (given.lenses or Path(folder)) / Path(name).name
            found[name] = grow(name, given, work)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
