"""Fine-tune the default model on plays, as a target for `saccade lens transfer --to`.

    python bench/changed_model.py a-changed-model

Trains on the first nine tenths of tinyshakespeare and writes a folder that `--to` opens. Prints
JSON: the perplexity on the last tenth and on another text, before and after.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

from saccade.interp.effects.replacement import reference_text
from saccade.interp.heads.model import open_model
from saccade.zoo.tasks.books import read_tinyshakespeare

WINDOW = 256
N_JUDGED = 32  # windows of each text


def main() -> None:
    """Fine-tune, save, and print the perplexities."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=4, help="batch size in windows")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    asked = parser.parse_args()

    opened = open_model()
    hf, tokenizer = opened.hf, opened.tokenizer
    plays = read_tinyshakespeare()
    learnt = torch.tensor(tokenizer(plays.train)["input_ids"])
    held_out = torch.tensor(tokenizer(plays.test)["input_ids"])[: N_JUDGED * WINDOW]
    judged = {
        "plays": held_out.view(N_JUDGED, WINDOW),
        "its own text": reference_text(opened, None, window=WINDOW),
    }
    facts = {"steps": asked.steps, "before": {k: perplexity(hf, v) for k, v in judged.items()}}
    tune(hf, learnt, steps=asked.steps, rows=asked.rows, learning_rate=asked.learning_rate)
    facts["after"] = {k: perplexity(hf, v) for k, v in judged.items()}
    hf.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out)
    print(json.dumps(facts))


def tune(
    hf: nn.Module, ids: Int[Tensor, " token"], *, steps: int, rows: int, learning_rate: float
) -> None:
    """AdamW on random windows."""
    hf.train().requires_grad_(requires_grad=True)
    optimiser = torch.optim.AdamW(hf.parameters(), lr=learning_rate)
    windows = ids.unfold(0, WINDOW, 1)
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = windows[torch.randint(len(windows), (rows,), generator=draw)]
        optimiser.zero_grad()
        hf(batch, labels=batch).loss.backward()
        nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimiser.step()


@torch.no_grad()
def perplexity(hf: nn.Module, windows: Int[Tensor, "window pos"]) -> float:
    """Perplexity of all tokens but the first of each window."""
    hf.eval()
    losses = [hf(each[None], labels=each[None]).loss for each in windows]
    return round(float(torch.stack(losses).mean().exp()), 2)


if __name__ == "__main__":
    main()
