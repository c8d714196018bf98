"""JoeyNMT's side of `sequence.py`, which runs this file in JoeyNMT's venv and sends commands.

    {"do": "open", "work": ...}                  read sizes, batches and weights, build the models
    {"do": "train", "system": ..., "batch": i}   one training step
    {"do": "score", "batch": i}                  the Transformer's loss on the target tokens
    {"do": "beam", "system": ..., "batch": i}    translate the sources of a batch

A command is one line of JSON, and so is its answer, with the seconds it took. Models, training
step, optimiser, clipping and search are JoeyNMT's own; nothing from saccade is imported.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_gradient_clipper, build_optimizer
from joeynmt.model import Model, build_model
from joeynmt.search import beam_search
from joeynmt.training import TrainManager
from joeynmt.vocabulary import Vocabulary
from safetensors.torch import load_file
from torch import Tensor

SYMBOLS = SimpleNamespace(
    unk_token="<unk>",
    pad_token="<pad>",
    bos_token="<s>",
    eos_token="</s>",
    sep_token=None,
    lang_tags=[],
    unk_id=0,
    pad_id=1,
    bos_id=2,
    eos_id=3,
    sep_id=None,
)
# Our order is <pad>, <s>, </s>, <unk>; theirs is by the ids above.
THEIRS = [1, 2, 3, 0]


def transformer_config(sizes: dict[str, Any]) -> dict[str, Any]:
    """Encoder and decoder with pre-norm, all embeddings shared."""
    d_model = sizes["d_model"]
    stack = {
        "type": "transformer",
        "num_layers": sizes["n_layers"],
        "num_heads": sizes["n_heads"],
        "embeddings": {"embedding_dim": d_model, "scale": True},
        "hidden_size": d_model,
        "ff_size": sizes["d_hidden"],
        "dropout": sizes["dropout"],
        "layer_norm": "pre",
        "activation": "relu",
    }
    return {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True}


def bahdanau_config(sizes: dict[str, Any]) -> dict[str, Any]:
    """A bidirectional GRU encoder, and a GRU decoder with Bahdanau's score."""
    embeddings = {"embedding_dim": sizes["d_embed"], "scale": False}
    stack = {
        "type": "recurrent",
        "rnn_type": "gru",
        "embeddings": embeddings,
        "hidden_size": sizes["d_hidden"],
        "num_layers": 1,
        "dropout": sizes["dropout"],
    }
    decoder = {"attention": "bahdanau", "input_feeding": True, "init_hidden": "bridge"}
    return {
        "encoder": {**stack, "bidirectional": True},
        "decoder": {**stack, **decoder, "hidden_dropout": sizes["dropout"]},
        "tied_embeddings": False,
        "tied_softmax": True,
    }


CONFIGS = {"transformer": transformer_config, "bahdanau": bahdanau_config}


class Side:
    """The models and their inputs."""

    def __init__(self, work: Path) -> None:
        held = json.loads((work / "given.json").read_text(encoding="utf-8"))
        torch.set_num_threads(held["threads"])
        torch.manual_seed(0)
        self.search = held["search"]
        self.batches = held["batches"]
        n_words = held["n_vocab"] - 4
        vocabulary = Vocabulary([f"w{number}" for number in range(n_words)], SYMBOLS)
        self.models, self.trainers = {}, {}
        for name, sizes in held["sizes"].items():
            kind = name.partition("-")[0]
            model = build_model(CONFIGS[kind](sizes), vocabulary, vocabulary)
            model.loss_function = ("crossentropy", held["smoothing"])
            if kind == "transformer":
                take_weights(model, load_file(work / "transformer.safetensors"))
            self.models[name] = model
            self.trainers[name] = Trainer(model)

    def batch(self, number: int) -> Batch:
        """A batch in the form of JoeyNMT's own collate function."""
        held = self.batches[number]
        sources, targets = ([their_ids(row) for row in held[side]] for side in ("source", "target"))
        return Batch(
            src=padded(sources),
            src_length=torch.tensor([len(row) for row in sources]),
            src_prompt_mask=None,
            trg=padded(targets),
            trg_prompt_mask=None,
            indices=torch.arange(len(sources)),
            device=torch.device("cpu"),
            pad_index=SYMBOLS.pad_id,
            eos_index=SYMBOLS.eos_id,
        )

    def train(self, system: str, number: int) -> dict[str, Any]:
        """One step of training."""
        batch = self.batch(number)
        start = time.perf_counter()
        loss = self.trainers[system].step(batch)
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def score(self, number: int) -> dict[str, Any]:
        """Nats per token, without dropout and label smoothing."""
        batch, model = self.batch(number), self.models["transformer"].eval()
        with torch.no_grad():
            _, log_probs, _, _ = model(return_type="loss", **vars(batch))
        right = log_probs.gather(2, batch.trg[:, :, None])[:, :, 0][batch.trg_mask[:, 0]]
        return {"nats": -right.mean().item()}

    def beam(self, system: str, number: int) -> dict[str, Any]:
        """Translate the sources of a batch."""
        batch, model = self.batch(number), self.models[system].eval()
        start = time.perf_counter()
        batch.sort_by_src_length()
        with torch.no_grad():
            output, hidden, _, _ = model(return_type="encode", **vars(batch))
            found, _, _ = beam_search(
                model=model,
                beam_size=self.search["beam"],
                encoder_output=output,
                encoder_hidden=hidden,
                src_mask=batch.src_mask,
                max_output_length=self.search["max_length"],
                min_output_length=self.search["max_length"],
                alpha=self.search["length_penalty"],
            )
        return {"seconds": time.perf_counter() - start, "steps": found.shape[1]}


class Trainer:
    """JoeyNMT's training step, without writing files."""

    def __init__(self, model: Model) -> None:
        self.manager = object.__new__(TrainManager)
        self.manager.model = model
        self.manager.args = SimpleNamespace(normalization="tokens", batch_multiplier=1)
        self.manager.autocast = {"device_type": "cpu", "enabled": False}
        self.manager.scaler, self.manager.n_gpu = None, 0
        self.clip = build_gradient_clipper({"clip_grad_val": None, "clip_grad_norm": 1.0})
        settings = {"optimizer": "adam", "learning_rate": 1e-4}
        self.optimizer = build_optimizer(settings, model.parameters())

    def step(self, batch: Batch) -> float:
        """The body of its training loop."""
        loss, _ = self.manager._train_step(batch)
        self.clip(parameters=self.manager.model.parameters())
        self.optimizer.step()
        self.manager.model.zero_grad()
        return loss


def their_ids(row: list[int]) -> list[int]:
    """The same tokens with JoeyNMT's ids."""
    return [THEIRS[each] if each < len(THEIRS) else each for each in row]


def padded(rows: list[list[int]]) -> Tensor:
    """Pad rows to the same length."""
    longest = max(map(len, rows))
    return torch.tensor([row + [SYMBOLS.pad_id] * (longest - len(row)) for row in rows])


def take_weights(model: Model, ours: dict[str, Tensor]) -> None:
    """Copy the weights of our Transformer into theirs."""
    table = ours["target_embedding.weight"].clone()
    table[THEIRS] = ours["target_embedding.weight"][:4]
    found = {"src_embed.lut.weight": table, "trg_embed.lut.weight": table}
    found["decoder.output_layer.weight"] = table
    found |= dict(pair for name, value in ours.items() for pair in renamed(name, value))
    missing, unknown = model.load_state_dict(found, strict=False)
    left = [name for name in missing if not name.endswith(".pe.pe")]
    assert not left and not unknown, f"weights do not match: {left} {unknown}"


STACKS = {"encoder": "encoder.layers", "decoder": "decoder.layers"}
ATTENTIONS = {
    ("encoder", "attention"): "src_src_att",
    ("decoder", "attention"): "trg_trg_att",
    ("decoder", "cross"): "src_trg_att",
}
NORMS = {
    ("encoder", "around_attention"): "layer_norm",
    ("decoder", "around_attention"): "x_layer_norm",
    ("decoder", "around_cross"): "dec_layer_norm",
    ("encoder", "around_feed_forward"): "feed_forward.layer_norm",
    ("decoder", "around_feed_forward"): "feed_forward.layer_norm",
}


def renamed(name: str, value: Tensor) -> list[tuple[str, Tensor]]:
    """Their names for one of our weights, which may combine three of theirs."""
    stack, _, rest = name.partition(".")
    if stack in ("source_norm", "target_norm"):
        return [(f"{'encoder' if stack == 'source_norm' else 'decoder'}.layer_norm.{rest}", value)]
    if stack not in STACKS:
        return []  # embeddings
    layer, part, *leaf = rest.split(".")
    start = f"{STACKS[stack]}.{layer}"
    if part == "feed_forward":
        place = {"0": "0", "2": "3"}[leaf[0]]
        return [(f"{start}.feed_forward.pwff_layer.{place}.{leaf[1]}", value)]
    if part.startswith("around"):
        return [(f"{start}.{NORMS[stack, part]}.{leaf[1]}", value)]
    attention = f"{start}.{ATTENTIONS[stack, part]}"
    if leaf[0] == "out_proj":
        return [(f"{attention}.output_layer.{leaf[1]}", value)]
    kind = leaf[0].removeprefix("in_proj_")
    names = [f"{attention}.{each}_layer.{kind}" for each in "qkv"]
    return list(zip(names, value.chunk(3), strict=True))


def main() -> None:
    """Answer commands until stdin closes."""
    side: Side | None = None
    for line in sys.stdin:
        told = json.loads(line)
        do = told.pop("do")
        if do == "open":
            side, answer = Side(Path(told["work"])), {"torch": torch.__version__}
        else:
            assert side is not None, "nothing was opened"
            answer = getattr(side, do)(**told)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
