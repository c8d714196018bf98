"""The model's own prediction at every position of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from saccade.lenses.head_reading import Word, plain
from saccade.lenses.top_words import largest

if TYPE_CHECKING:
    from saccade.lenses.text_run import TextRun

CHUNK = 64  # positions whose logits are held at once: some megabytes


@torch.inference_mode()
def predictions(run: TextRun, *, top: int = 5) -> dict[str, Any]:
    """Likeliest next words, how surprising each token was, and how open each place is; for JSON."""
    model, ids = run.model, run.ids[0]
    found: list[dict[str, Any]] = []
    surprise: list[float | None] = [None]
    for start in range(0, len(ids), CHUNK):
        states = run.captured.final[0, start : start + CHUNK]
        log_p = model.unembedding.logits(states).float().log_softmax(-1)  # [pos, d_vocab]
        best = largest(log_p, min(top, model.d_vocab))
        entropy = -(log_p.exp() * log_p).sum(-1)
        came = ids[start + 1 : start + 1 + len(states)].to(log_p.device)
        surprise += (-log_p[: len(came)].gather(1, came[:, None])[:, 0]).tolist()
        for row, (words, values) in enumerate(
            zip(best.ids.tolist(), best.values.exp().tolist(), strict=True)
        ):
            words_ = tuple(map(Word, words, model.words(words), values))
            found.append(
                {
                    "position": start + row,
                    "top": plain(words_),
                    "surprise": plain(surprise[start + row]),
                    "entropy": plain(float(entropy[row])),
                }
            )
    return {"text": run.text, "tokens": run.tokens, "positions": found}
