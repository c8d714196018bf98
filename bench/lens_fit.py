"""What lenses cost and how good they are: `python bench/lens_fit.py [--quick]`.

Prints one JSON object. Times are ratios within this run; the default model; WikiText-2 (valid to
fit on, test to judge by) where SACCADE_DATA has it, else text that the model writes itself.
Needs about an hour on two cores, `--quick` about a minute. `--work FOLDER` keeps what was made, so
that `--parts` can measure some parts again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from lens_published import published
from lens_shares import Judge, mean, one_head, train_until_no_better
from torch import Tensor

import saccade
from saccade.distributed import Processes
from saccade.interp.heads.capture import capture
from saccade.interp.heads.model import LanguageModel
from saccade.interp.lenses.batches import Batch, CorpusBatches
from saccade.interp.lenses.corpus import Corpus, read_corpus, split
from saccade.interp.lenses.fit import fit_on
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.held_out import HeldOut
from saccade.interp.lenses.lens_set import Lenses, load_lenses
from saccade.interp.lenses.polish import PolishConfig, polish
from saccade.interp.lenses.self_text import sample_batches
from saccade.store.atomic import data_dir
from saccade.store.folder import load_tensors, save_tensors

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Sizes:
    """How much of everything a run takes."""

    tokens: int = 65536
    judged_tokens: int = 16384
    judged_positions: int = 2048
    heads: int = 30
    polish_steps: int = PolishConfig().steps
    polish_rows: int = PolishConfig().rows
    reference_steps: int = 60
    reference_rounds: int = 5
    published_steps: int = 30
    repeats: int = 9


QUICK = Sizes(
    tokens=1024,
    judged_tokens=1024,
    judged_positions=64,
    heads=4,
    polish_steps=1,
    polish_rows=1,
    reference_steps=2,
    reference_rounds=1,
    published_steps=1,
    repeats=3,
)


@dataclass
class TimedBatches:
    """Batches that run the model's plain forward pass beside every reading, and time it."""

    inner: CorpusBatches
    heads: dict[int, int]
    plain_seconds: float = 0.0
    beside_seconds: float = 0.0
    kept: dict[int, list[Tensor]] = field(default_factory=dict)
    final: list[Tensor] = field(default_factory=list)

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def read(self, index: int) -> Batch:
        """The plain forward pass, timed; then the batch, as the fit reads it."""
        start = time.perf_counter()
        rows = self.inner.rows
        ids = self.inner.corpus.windows[index * rows : (index + 1) * rows]
        with torch.inference_mode():
            self.inner.model.hf(ids)
        self.plain_seconds += time.perf_counter() - start
        batch = self.inner.read(index)
        start = time.perf_counter()
        self._keep(ids[~batch.held_out])
        self.beside_seconds += time.perf_counter() - start
        return batch

    def _keep(self, ids: Tensor) -> None:
        """Every position, for the reference training below; not part of the fit."""
        if len(ids) == 0:
            return
        captured = capture(self.inner.model, ids, layers=list(self.heads))
        for layer, head in self.heads.items():
            kept = captured.z[layer][:, :, head].flatten(0, 1)
            self.kept.setdefault(layer, []).append(kept.to(torch.bfloat16))
        self.final.append(captured.final.flatten(0, 1).to(torch.bfloat16))

    def tensors(self) -> dict[str, Tensor]:
        """What the chosen heads held, and the final states."""
        z = {str(layer): torch.cat(parts) for layer, parts in self.kept.items()}
        return {**z, "final": torch.cat(self.final)}


def texts(model: LanguageModel, sizes: Sizes) -> tuple[Corpus, Corpus]:
    """Text to fit on and text to judge by."""
    folder = data_dir()
    if folder is not None and (folder / "wikitext-2" / "valid.txt.gz").exists():
        fitted = read_corpus(folder / "wikitext-2/valid.txt.gz", model, max_tokens=sizes.tokens)
        judged = read_corpus(
            folder / "wikitext-2/test.txt.gz", model, max_tokens=sizes.judged_tokens
        )
        return _never_seen(fitted), judged
    total = sizes.tokens + 4096
    ids = torch.cat([each.ids for each in sample_batches(model, n_tokens=total, window=256)])
    fitted, judged = split(Corpus("self", "self", ids, n_bytes=0), held_out=16)
    return _never_seen(fitted), judged


def _never_seen(corpus: Corpus) -> Corpus:
    """With a name of its own: a fit that was stopped must not go on here, all has to be timed."""
    return replace(corpus, fingerprint=f"{corpus.fingerprint} {time.time_ns()}")


def reading_ratio(model: LanguageModel, lenses: Lenses, sizes: Sizes) -> float:
    """Reading the last of 20 tokens with every lens, over the plain forward pass."""
    text = "The quick brown fox jumps over the lazy dog and then walks home along the river to"
    ids = model.encode(text)
    while ids.shape[1] < 20:
        text += " the"
        ids = model.encode(text)
    plain, read = [], []
    for _ in range(sizes.repeats + 1):
        start = time.perf_counter()
        with torch.inference_mode():
            model.hf(ids)
        plain.append(time.perf_counter() - start)
        start = time.perf_counter()
        lenses.read(text)
        read.append(time.perf_counter() - start)
    return statistics.median(read[1:]) / statistics.median(plain[1:])


def extra_memory(tokens: int) -> float:
    """Peak memory of a fit above that of the loaded model, in GB, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "lens_fit.py"), "--memory", str(tokens)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def measure_memory(tokens: int) -> None:
    """The other half of `extra_memory`."""
    import resource

    import psutil

    model = saccade.open_model()
    fitted, _ = texts(model, Sizes(tokens=tokens))
    with torch.inference_mode():
        model.hf(fitted.windows[:1], logits_to_keep=1)  # weights are only read from disk when used
    before = psutil.Process().memory_info().rss
    fit_on(model, CorpusBatches(model, fitted, 8), FitConfig(seed=7), processes=Processes())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    print((peak - before) / 1e9)


@dataclass
class Bench:
    """One run: what is measured, on what, and where the long parts are kept."""

    model: LanguageModel
    sizes: Sizes
    work: Path
    found: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fitted, self.judged = texts(self.model, self.sizes)
        self.batches = CorpusBatches(self.model, self.fitted, 8)
        layers = self.model.layers
        chosen = layers[:: max(1, len(layers) // self.sizes.heads)][: self.sizes.heads]
        self.heads = {at.index: (at.index * 4 + 2) % at.n_heads for at in chosen}
        if (self.work / "found.json").exists():
            self.found = json.loads((self.work / "found.json").read_text())

    def say(self, **found: object) -> None:
        """Keep figures, and show them as they come."""
        self.found.update(found)
        (self.work / "found.json").write_text(json.dumps(self.found, indent=1))
        print(json.dumps(found), file=sys.stderr, flush=True)

    def lenses(self, name: str) -> Lenses:
        """Lenses that an earlier part has made."""
        return load_lenses(self.work / name, self.model)

    def fit(self) -> None:
        """The closed form, beside the plain forward pass over the same batches."""
        with torch.inference_mode():
            self.model.hf(self.fitted.windows[:4])  # warm up
        timed = TimedBatches(self.batches, self.heads)
        start = time.perf_counter()
        config = FitConfig(tokens=self.sizes.tokens)
        lenses = fit_on(self.model, timed, config, processes=Processes())
        seconds = time.perf_counter() - start - timed.plain_seconds - timed.beside_seconds
        lenses.save(self.work / "closed")
        save_tensors(self.work / "kept.safetensors", timed.tensors())
        self.say(
            text=self.fitted.source.rpartition("/")[2],
            tokens=self.fitted.n_tokens,
            forward_seconds=timed.plain_seconds,
            fit_seconds=seconds,
            fit_over_forward=seconds / timed.plain_seconds,
        )

    def read(self) -> None:
        """A reading with every lens, beside the plain forward pass."""
        self.say(read_over_forward=reading_ratio(self.model, self.lenses("closed"), self.sizes))

    def memory(self) -> None:
        """Peak memory of a fit in a fresh process."""
        self.say(extra_memory_gb=extra_memory(min(self.sizes.tokens, 16384)))

    def plain_seconds(self) -> float:
        """The plain forward pass over all batches, from the first few."""
        some = self.fitted.windows.split(8)[:4]
        start = time.perf_counter()
        with torch.inference_mode():
            for ids in some:
                self.model.hf(ids)
        return (time.perf_counter() - start) * len(self.batches) / len(some)

    def polish(self) -> None:
        """The polish of the closed form, beside plain forward passes before and after it."""
        lenses = self.lenses("closed")
        assert lenses.statistics and lenses.held_out, "the closed form keeps its sums"
        text = self.fitted.windows[~self.batches.held_out_rows()]
        before = self.plain_seconds()
        start = time.perf_counter()
        polish(
            self.model,
            {k: each for k, each in lenses.by_layer.items() if isinstance(each, HeadLens)},
            lenses.statistics,
            HeldOut.of(self.model, lenses.held_out, lenses.baseline),
            Corpus(self.fitted.source, self.fitted.fingerprint, text, n_bytes=0),
            config=PolishConfig(steps=self.sizes.polish_steps, rows=self.sizes.polish_rows),
            processes=Processes(),
        )
        seconds = time.perf_counter() - start
        plain = (before + self.plain_seconds()) / 2
        lenses.save(self.work / "polished")
        fit = self.found["fit_over_forward"]
        assert isinstance(fit, float), "the part `fit` comes first"
        self.say(polish_seconds=seconds, polish_over_forward=fit + seconds / plain)

    def published(self) -> None:
        """The paper's recipe on the middle layer, times the number of layers."""
        judge = Judge.of(self.model, self.judged, self.sizes.judged_positions // 4)
        layer = self.model.layers[len(self.model.layers) // 2].index
        wanted = judge.kl({layer: self.lenses("closed").by_layer[layer]})[layer]
        found = published(judge, self.model, self.fitted, wanted, layer, self.sizes.published_steps)
        whole = found["seconds_to_reach_one_layer"] * len(self.model.layers)
        seconds = self.found["fit_seconds"]
        assert isinstance(seconds, float), "the part `fit` comes first"
        self.say(published=found, published_over_closed_form=whole / seconds)

    def shares(self) -> None:
        """How much of what can be gained the closed form and the polish have."""
        judge = Judge.of(self.model, self.judged, self.sizes.judged_positions)
        closed, polished = self.lenses("closed"), self.lenses("polished")
        baseline = judge.baseline_kl(closed.baseline)

        def alone(lenses: Lenses) -> dict[int, HeadLens]:
            return {k: one_head(self.model, lenses.by_layer[k], h) for k, h in self.heads.items()}

        def judged(lenses: dict[int, HeadLens]) -> dict[int, float]:
            return {k: float(kl) for k, kl in judge.kl(lenses, self.heads).items()}

        kl = {"closed_form": judged(alone(closed)), "polished": judged(alone(polished))}
        kept = load_tensors(self.work / "kept.safetensors")
        best = train_until_no_better(
            judge,
            alone(polished),
            kept,
            closed,
            self.heads,
            steps=self.sizes.reference_steps,
            rounds=self.sizes.reference_rounds,
        )
        best = {k: min(best[k], *(each[k] for each in kl.values())) for k in best}
        self.say(heads_judged=len(best), baseline_kl=baseline, achievable_kl=mean(best))
        for name, each in kl.items():
            share = [(baseline - each[k]) / (baseline - best[k]) for k in best]
            pooled = (baseline - mean(each)) / (baseline - mean(best))
            self.say(
                **{
                    f"{name}_kl": mean(each),
                    f"{name}_share": sum(share) / len(share),
                    f"{name}_share_of_mean_gain": pooled,
                }
            )
        rows = {
            f"{k}.{self.heads[k]}": [round(x[k], 4) for x in (*kl.values(), best)] for k in best
        }
        self.say(closed_polished_best_by_head=rows)


PARTS = ("fit", "read", "memory", "polish", "published", "shares")


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tokens, heads and steps")
    parser.add_argument("--work", type=Path, help="keep what takes long here, and use it again")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        measure_memory(given.memory)
        return
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(saccade.open_model(), QUICK if given.quick else Sizes(), work)
        bench.say(quick=given.quick)
        for part in given.parts:
            getattr(bench, part)()
        print(json.dumps(bench.found, indent=1))


if __name__ == "__main__":
    main()
