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
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import saccade
from saccade.heads import LanguageModel, capture
from saccade.lenses.batches import Batch, CorpusBatches
from saccade.lenses.collection import Lenses, load_lenses
from saccade.lenses.corpus import Corpus, read_corpus, split
from saccade.lenses.fit import fit_on
from saccade.lenses.fit_config import FitConfig
from saccade.lenses.gradient import GradientConfig, train
from saccade.lenses.head_lens import DenseHeadLens, HeadLens
from saccade.lenses.lens import Lens
from saccade.lenses.objectives import find_objective
from saccade.lenses.polish import LayerState, PolishConfig, gradient_of, teacher_of
from saccade.lenses.processes import Processes
from saccade.lenses.self_text import sample_batches
from saccade.lenses.statistics import Statistics
from saccade.store import data_dir, load_tensors, save_tensors

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Sizes:
    """How much of everything a run takes."""

    tokens: int = 65536
    judged_positions: int = 2048
    heads: int = 30
    polish_steps: int = PolishConfig().steps
    reference_steps: int = 60
    reference_rounds: int = 5
    published_steps: int = 30
    repeats: int = 9


QUICK = Sizes(
    tokens=2048,
    judged_positions=64,
    heads=4,
    polish_steps=1,
    reference_steps=2,
    reference_rounds=1,
    published_steps=2,
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
        # Kept for the reference training below; not part of the fit.
        keeping = time.perf_counter()
        fitted = ~batch.held_out
        for layer, head in self.heads.items():
            kept = batch.z[layer][fitted][:, :, head].flatten(0, 1)
            self.kept.setdefault(layer, []).append(kept.to(torch.bfloat16))
        self.final.append(batch.final[fitted].flatten(0, 1).to(torch.bfloat16))
        self.beside_seconds += time.perf_counter() - keeping
        return batch

    def tensors(self) -> dict[str, Tensor]:
        """What the chosen heads held, and the final states."""
        z = {str(layer): torch.cat(parts) for layer, parts in self.kept.items()}
        return {**z, "final": torch.cat(self.final)}


def texts(model: LanguageModel, sizes: Sizes) -> tuple[Corpus, Corpus]:
    """Text to fit on and text to judge by."""
    folder = data_dir()
    if folder is not None and (folder / "wikitext-2" / "valid.txt.gz").exists():
        fitted = read_corpus(folder / "wikitext-2/valid.txt.gz", model, max_tokens=sizes.tokens)
        judged = read_corpus(folder / "wikitext-2/test.txt.gz", model, max_tokens=16384)
        return fitted, judged
    total = sizes.tokens + 4096
    ids = torch.cat([each.ids for each in sample_batches(model, n_tokens=total, window=256)])
    whole = Corpus("self", "self", ids, n_bytes=0)
    return split(whole, held_out=16)


@dataclass
class Judge:
    """Held-out KL of single heads over the whole vocabulary."""

    model: LanguageModel
    z: dict[int, Tensor]
    final: Tensor

    @classmethod
    def of(cls, model: LanguageModel, corpus: Corpus, n: int) -> Judge:
        """Take about ``n`` positions of a text, evenly spaced."""
        z: dict[int, list[Tensor]] = {}
        final = []
        stride = max(1, corpus.n_tokens // n)
        for ids in corpus.windows.split(8):
            held = capture(model, ids)
            for layer, each in held.z.items():
                z.setdefault(layer, []).append(each.flatten(0, 1)[::stride].clone())
            final.append(held.final.flatten(0, 1)[::stride].clone())
        return cls(model, {k: torch.cat(v) for k, v in z.items()}, torch.cat(final))

    @torch.inference_mode()
    def kl(self, lenses: dict[int, Lens], heads: dict[int, int] | None = None) -> dict[int, Tensor]:
        """By layer: the KL of every head, or of the one that ``heads`` names."""
        total: dict[int, Tensor] = {}
        for some in torch.arange(len(self.final)).split(256):
            log_p = self.model.unembedding.logits(self.final[some]).log_softmax(-1)
            p = log_p.exp()
            negentropy = (p * log_p).sum(-1)
            for layer, lens in lenses.items():
                z = self.z[layer][some]
                logits = lens(z if heads is None else z[:, [heads[layer]]])
                cross = logits.logsumexp(-1) - torch.einsum("nhv,nv->nh", logits, p)
                kl = (negentropy[:, None] + cross).sum(0) / len(self.final)
                total[layer] = total.get(layer, 0) + kl
        return total

    @torch.inference_mode()
    def constant_kl(self, constant: Tensor) -> float:
        """The KL of the lens that hears nothing."""
        log_p = self.model.unembedding.logits(self.final).log_softmax(-1)
        return float((log_p.exp() * (log_p - constant)).sum(-1).mean())


def one_head(model: LanguageModel, lens: HeadLens, head: int) -> HeadLens:
    """The lens of one head on its own."""
    alone = HeadLens(n_heads=1, d_head=lens.weight.shape[1], unembedding=model.unembedding.weight)
    alone.load_state_dict({name: each[[head]] for name, each in lens.state_dict().items()})
    return alone.requires_grad_(False)


@torch.inference_mode()
def train_until_no_better(
    judge: Judge,
    lenses: dict[int, HeadLens],
    kept: dict[str, Tensor],
    closed: Lenses,
    heads: dict[int, int],
    sizes: Sizes,
) -> dict[int, float]:
    """The least KL that gradient steps reach on each head, judged on the held-out text itself.

    Twice the words of the polish, more and ever smaller steps, from where the polish ended; the
    best state of each head counts, chosen by the very text that it is judged on, so this errs up.
    Ends when a round of steps improves the mean gain by less than 0.3 %.
    """
    model = judge.model
    final = kept["final"].float()
    assert closed.statistics is not None, "the closed form keeps its sums"
    states = {
        layer: LayerState.of(lens, one_head_sums(closed.statistics, layer, heads[layer]), layer)
        for layer, lens in lenses.items()
    }
    best = {layer: float(kl) for layer, kl in judge.kl(lenses, heads).items()}
    constant = judge.constant_kl(closed.constant)
    generator = torch.Generator().manual_seed(1)
    for round_ in range(sizes.reference_rounds):
        before = constant - mean(best)
        config = PolishConfig(words=8192, seed=round_ + 1)
        for step in range(1, sizes.reference_steps + 1):
            index = torch.randint(len(final), (1024,), generator=generator)
            words, teacher, n = teacher_of(
                model, final[index], step, config=config, processes=Processes()
            )
            vectors = model.unembedding.weight[words.ids]
            rate = 0.1 * 0.6**round_ * min(1.0, 2.2 - 2 * step / sizes.reference_steps)
            for layer, state in states.items():
                z = kept[str(layer)][index][:, None].float()
                gradient = gradient_of(state, z, vectors, words, teacher) / n
                state.velocity.mul_(0.9).add_(gradient)
                state.weight.sub_(gradient + 0.9 * state.velocity, alpha=rate)
            if step % max(1, sizes.reference_steps // 2) == 0:
                for state in states.values():
                    state.write(state.weight)
                found = judge.kl(lenses, heads)
                best = {layer: min(best[layer], float(kl)) for layer, kl in found.items()}
                gain = constant - mean(best)
                print(f"reference {round_}.{step}: gain {gain:.4f}", file=sys.stderr, flush=True)
        if constant - mean(best) < 1.003 * before:
            break
    return best


def mean(by_head: dict[int, float]) -> float:
    """The mean over heads."""
    return sum(by_head.values()) / len(by_head)


def one_head_sums(whole: Statistics, layer: int, head: int) -> Statistics:
    """The sums of one head on its own."""
    sums = {"n": whole.sums["n"]}
    for name in (f"{layer}.z", f"{layer}.zz"):
        sums[name] = whole.sums[name][[head]]
    return Statistics(sums=sums, layers=(layer,))


def published(
    judge: Judge, model: LanguageModel, text: Corpus, wanted: Tensor, layer: int, sizes: Sizes
) -> dict[str, float]:
    """How long the paper's recipe takes to reach the closed form on one layer.

    Runs some steps and, if it is not there yet, goes on at the pace of its last third: real curves
    flatten, so the estimate errs in its favour.
    """
    lens = DenseHeadLens.start(model, layer)
    points = [(0.0, 0, float(judge.kl({layer: lens})[layer].mean()))]
    spent = 0.0
    pieces = 3
    for piece in range(pieces):
        config = GradientConfig(steps=sizes.published_steps // pieces + 1, rows=1, seed=piece)
        start = time.perf_counter()
        train(
            model,
            {layer: lens},
            find_objective("kl"),
            text,
            config=config,
            processes=Processes(),
        )
        spent += time.perf_counter() - start
        kl = float(judge.kl({layer: lens})[layer].mean())
        points.append((spent, points[-1][1] + config.steps, kl))
        print(f"published: {points[-1]}", file=sys.stderr, flush=True)
    goal = float(wanted.mean())
    seconds = spent
    if points[-1][2] > goal:
        pace = (points[-2][2] - points[-1][2]) / (points[-1][0] - points[-2][0])
        seconds = spent + (points[-1][2] - goal) / pace if pace > 0 else float("inf")
    return {
        "layer": layer,
        "steps": points[-1][1],
        "seconds_a_step": spent / points[-1][1],
        "kl_at_start": points[0][2],
        "kl_reached": points[-1][2],
        "kl_wanted": goal,
        "seconds_to_reach_one_layer": seconds,
        "estimated": points[-1][2] > goal,
    }


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

    def polish(self) -> None:
        """Closed form and polish together, beside the plain forward pass."""
        with torch.inference_mode():
            start = time.perf_counter()
            some = self.fitted.windows.split(8)[:4]
            for ids in some:
                self.model.hf(ids)
            plain = (time.perf_counter() - start) * len(self.batches) / len(some)
        start = time.perf_counter()
        config = FitConfig(tokens=self.sizes.tokens, method="polish", steps=self.sizes.polish_steps)
        lenses = fit_on(self.model, self.batches, config, processes=Processes())
        self.say(polish_over_forward=(time.perf_counter() - start) / plain)
        lenses.save(self.work / "polished")

    def published(self) -> None:
        """The paper's recipe on the middle layer, times the number of layers."""
        judge = Judge.of(self.model, self.judged, self.sizes.judged_positions // 4)
        layer = self.model.layers[len(self.model.layers) // 2].index
        wanted = judge.kl({layer: self.lenses("closed").by_layer[layer]})[layer]
        found = published(judge, self.model, self.fitted, wanted, layer, self.sizes)
        whole = found["seconds_to_reach_one_layer"] * len(self.model.layers)
        seconds = self.found["fit_seconds"]
        assert isinstance(seconds, float), "the part `fit` comes first"
        self.say(published=found, published_over_closed_form=whole / seconds)

    def shares(self) -> None:
        """How much of what can be gained the closed form and the polish have."""
        judge = Judge.of(self.model, self.judged, self.sizes.judged_positions)
        closed, polished = self.lenses("closed"), self.lenses("polished")
        constant = judge.constant_kl(closed.constant)

        def alone(lenses: Lenses) -> dict[int, HeadLens]:
            return {k: one_head(self.model, lenses.by_layer[k], h) for k, h in self.heads.items()}

        def judged(lenses: dict[int, HeadLens]) -> dict[int, float]:
            return {k: float(kl) for k, kl in judge.kl(lenses, self.heads).items()}

        kl = {"closed_form": judged(alone(closed)), "polished": judged(alone(polished))}
        kept = load_tensors(self.work / "kept.safetensors")
        best = train_until_no_better(judge, alone(polished), kept, closed, self.heads, self.sizes)
        best = {k: min(best[k], *(each[k] for each in kl.values())) for k in best}
        self.say(heads_judged=len(best), constant_kl=constant, achievable_kl=mean(best))
        for name, each in kl.items():
            share = [(constant - each[k]) / (constant - best[k]) for k in best]
            pooled = (constant - mean(each)) / (constant - mean(best))
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
