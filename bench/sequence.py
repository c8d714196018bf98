"""Speed of translators compared with JoeyNMT: `python bench/sequence.py [--quick]`.

Prints one JSON object. Needs Multi30k (SACCADE_DATA) and, the first time, a package index: JoeyNMT
2.3.0 is installed into its own venv in the cache. Takes about three minutes on two cores, a minute
with `--quick`, whose ratios are less precise.

Both sides have the same torch, threads, sizes, dropout rate, smoothing and batches, alternate, and
count by the fastest of some rounds. The Transformers have the same weights; ``nats`` shows that
both have the same loss on the target tokens. The ratios are speed over JoeyNMT's speed:

- ``transformer_over_joeynmt``, ``bahdanau_over_joeynmt``: training steps, with the recipes' sizes.
  JoeyNMT has dropout in more places (on attention weights and inside feed-forward networks), so
  the ratio without dropout is reported too. Its recurrent decoder is Luong's with Bahdanau's score.
- ``beam_over_joeynmt``: sentences, beam 5, both systems together; ``beam`` has the ratio of each.
  JoeyNMT's Transformer recomputes its own past at every step; a recurrent step of either side is
  mostly the output projection, which cannot be made faster. On both sides no sentence may end
  before the limit, so that they take the same number of steps.
- ``additive_over_matmul``: see `additive_attention.py`; lower is better.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import additive_attention
import torch
from joeynmt_venv import joeynmt_python
from torch import nn
from torch.nn.utils import clip_grad_norm_

from saccade.store.folder import save_tensors
from saccade.zoo.decoding.beam import beam
from saccade.zoo.models.bahdanau import BahdanauTranslator
from saccade.zoo.models.transformer import Transformer
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.translation import Tokenizers, token_loss_out
from saccade.zoo.recipes.translators import BahdanauSettings, TransformerSettings
from saccade.zoo.tasks.multi30k import read_multi30k
from saccade.zoo.tasks.pairs import PairBatch, Pairs
from saccade.zoo.tasks.vocabulary import EOS, Padded
from saccade.zoo.training.optim import make_optimiser, prepare_for_long_work

HERE = Path(__file__).resolve().parent
SETTINGS = TransformerSettings()
TRANSFORMER = {
    name: getattr(SETTINGS, name)
    for name in ("d_model", "n_layers", "n_heads", "d_hidden", "dropout")
}
BAHDANAU = {name: getattr(BahdanauSettings(), name) for name in ("d_embed", "d_hidden", "dropout")}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": TRANSFORMER,
    "transformer-still": {**TRANSFORMER, "dropout": 0.0},
    "bahdanau": BAHDANAU,
}
TOGETHER = 64  # batch size of the search, on both sides
SEARCH = {"beam": 5, "max_length": 20, "length_penalty": 1.0}  # a target has 17 tokens on average


class Given:
    """Batches for training, then batches to translate."""

    def __init__(self, *, n_batches: int) -> None:
        splits = read_multi30k()
        tokenizers = Tokenizers.learn(SETTINGS, splits.train)
        self.n_vocab = len(tokenizers.source)
        pairs, test = tokenizers.pairs(splits.train), tokenizers.pairs(splits.test)
        drawn = pairs.batches(tokens=SETTINGS.batch_tokens, seed=0, epoch=0)
        trained = [batch for batch, _ in zip(drawn, range(n_batches), strict=False)]
        self.batches = [*trained, *_searched(test, n_batches)]
        self.training = range(len(trained))
        self.searching = range(len(trained), len(self.batches))

    def to_json(self) -> dict[str, Any]:
        """The batches as JSON for JoeyNMT's side."""
        rows = [
            {
                "source": _rows(batch.source, batch.source_mask),
                "target": [
                    [first, *row]
                    for first, row in zip(
                        batch.target_in[:, 0].tolist(),
                        _rows(batch.target_out, batch.target_mask),
                        strict=True,
                    )
                ],
            }
            for batch in self.batches
        ]
        return {"n_vocab": self.n_vocab, "batches": rows}


class Ours:
    """Our side, with the same commands as `joeynmt_side.Side`."""

    def __init__(self, given: Given) -> None:
        prepare_for_long_work()  # as `saccade train` does
        torch.manual_seed(0)
        self.given = given
        sizes = {"n_source": given.n_vocab, "n_target": given.n_vocab}
        still = Transformer(**sizes, **SIZES["transformer-still"], ties="all")
        moving = Transformer(**sizes, **TRANSFORMER, ties="all")
        moving.load_state_dict(still.state_dict())
        self.models: dict[str, Any] = {
            "transformer": moving,
            "transformer-still": still,
            "bahdanau": BahdanauTranslator(**sizes, **BAHDANAU, output=BahdanauSettings().output),
        }
        config = replace(SETTINGS.training, learning_rate=1e-4)
        self.optimisers = {
            name: make_optimiser(model, config) for name, model in self.models.items()
        }

    def train(self, system: str, batch: int) -> dict[str, Any]:
        """One training step, as in `saccade.zoo.training.loop`."""
        model, optimiser = self.models[system].train(), self.optimisers[system]
        start = time.perf_counter()
        out = token_loss_out(model, self.given.batches[batch], smoothing=SETTINGS.smoothing)
        optimiser.zero_grad(set_to_none=True)
        out.loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return {"loss": out.loss.item(), "seconds": time.perf_counter() - start}

    def score(self, batch: int) -> dict[str, Any]:
        """Nats per token, without dropout and label smoothing."""
        held, model = self.given.batches[batch], self.models["transformer"].eval()
        with torch.no_grad():
            found = token_loss(model(held), held.target_out[held.target_mask])
        return {"nats": found.nll.item() / found.n_tokens}

    def beam(self, system: str, batch: int) -> dict[str, Any]:
        """Translate the sources of a batch."""
        held, model = self.given.batches[batch], self.models[system].eval()
        start = time.perf_counter()
        found = beam(
            Unending(model),
            Padded(held.source, held.source_mask),
            size=SEARCH["beam"],
            max_length=SEARCH["max_length"],
            length_penalty=SEARCH["length_penalty"],
        )
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "steps": max(len(each.ids) + 1 for each in found.best)}


class Unending:
    """A translator that never ends a sentence."""

    def __init__(self, model: Any) -> None:
        self.start, self.model = model.start, model

    def step(self, tokens: torch.Tensor, memory: Any, state: Any) -> Any:
        """The model's own step, with a very low probability of the end symbol."""
        stepped = self.model.step(tokens, memory, state)
        stepped.log_probs[:, EOS] = -1e4
        return stepped


class Theirs:
    """JoeyNMT in its own process, which waits while ours runs."""

    def __init__(self, work: Path) -> None:
        command = [joeynmt_python(), HERE / "joeynmt_side.py"]
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.torch = self.ask("open", work=str(work))["torch"]

    def ask(self, do: str, **told: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **told}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"JoeyNMT ended with code {self.process.wait()}; its last output is above")
        return json.loads(line)

    def close(self) -> None:
        """Close its input and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _searched(pairs: Pairs, n_batches: int) -> list[PairBatch]:
    """Batches of test sentences of similar length, spread over all lengths."""
    parts = pairs.source.lengths.argsort(stable=True).split(TOGETHER)[:-1]
    at = [(2 * number + 1) * len(parts) // (2 * n_batches) for number in range(n_batches)]
    return [pairs.batch(parts[place]) for place in at]


def _rows(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[real].tolist() for row, real in zip(ids, mask, strict=True)]


def fastest(
    sides: dict[str, Callable[[int], dict[str, Any]]], batches: range, *, rounds: int
) -> dict[str, float]:
    """Seconds for all batches, each in its fastest round; the sides alternate."""
    best = {name: dict.fromkeys(batches, float("inf")) for name in sides}
    for _ in range(rounds):
        for batch in batches:
            for name, call in sides.items():
                best[name][batch] = min(best[name][batch], call(batch)["seconds"])
    return {name: sum(held.values()) for name, held in best.items()}


def compare(
    do: str, system: str, *, ours: Ours, theirs: Theirs, batches: range, rounds: int
) -> dict[str, float]:
    """Ratio and seconds of one command on both sides."""
    sides = {
        "ours": lambda batch: getattr(ours, do)(system, batch),
        "theirs": lambda batch: theirs.ask(do, system=system, number=batch),
    }
    for call in sides.values():
        call(batches[0])  # warm-up
    seconds = fastest(sides, batches, rounds=rounds)
    row = {f"{name}_seconds": round(value, 4) for name, value in seconds.items()}
    return {"ratio": round(seconds["theirs"] / seconds["ours"], 3), **row}


def measure(*, n_batches: int, rounds: int) -> dict[str, Any]:
    """All ratios and their parts."""
    given = Given(n_batches=n_batches)
    ours = Ours(given)
    with tempfile.TemporaryDirectory() as work:
        told = {
            **given.to_json(),
            "sizes": SIZES,
            "smoothing": SETTINGS.smoothing,
            "search": SEARCH,
            "threads": torch.get_num_threads(),
        }
        Path(work, "given.json").write_text(json.dumps(told), encoding="utf-8")
        _save(ours.models["transformer"], Path(work, "transformer.safetensors"))
        theirs = Theirs(Path(work))
    nats = {"ours": ours.score(0)["nats"], "theirs": theirs.ask("score", number=0)["nats"]}
    if abs(nats["ours"] - nats["theirs"]) > 1e-3:
        sys.exit(f"the two Transformers are not the same: {nats}")
    training = {
        name: compare(
            "train", name, ours=ours, theirs=theirs, batches=given.training, rounds=rounds
        )
        for name in SIZES
    }
    searching = {
        name: compare(
            "beam", name, ours=ours, theirs=theirs, batches=given.searching, rounds=rounds
        )
        for name in ("transformer", "bahdanau")
    }
    theirs.close()
    additive = additive_attention.measure()
    return {
        "bahdanau_over_joeynmt": training["bahdanau"]["ratio"],
        "transformer_over_joeynmt": training["transformer"]["ratio"],
        "beam_over_joeynmt": round(
            sum(row["theirs_seconds"] for row in searching.values())
            / sum(row["ours_seconds"] for row in searching.values()),
            3,
        ),
        "additive_over_matmul": additive["additive_over_matmul"],
        "training": training,
        "beam": searching,
        "nats": nats,
        "sizes": {**SIZES, "n_vocab": given.n_vocab, "batch_tokens": SETTINGS.batch_tokens},
        "search": {**SEARCH, "sentences": TOGETHER},
        "threads": torch.get_num_threads(),
        "torch": {"ours": torch.__version__, "theirs": theirs.torch},
    }


def _save(model: nn.Module, path: Path) -> None:
    save_tensors(path, {name: value.clone() for name, value in model.state_dict().items()})


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one batch and two rounds")
    quick = parser.parse_args().quick
    found = measure(n_batches=1 if quick else 3, rounds=2 if quick else 5)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
