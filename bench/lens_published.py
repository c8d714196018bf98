"""Time of the paper's recipe to reach the held-out KL of the closed form."""

from __future__ import annotations

import sys
import time

from lens_shares import Judge
from torch import Tensor

from saccade.distributed import Processes
from saccade.interp.heads.model import LanguageModel
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.gradient import GradientConfig, find_objective, train
from saccade.interp.lenses.head_lens import DenseHeadLens


def published(
    judge: Judge, model: LanguageModel, text: Corpus, wanted: Tensor, layer: int, steps: int
) -> dict[str, float]:
    """Time of the paper's recipe to reach the closed form on one layer.

    Runs some steps and, if it has not reached the goal, extrapolates at the rate of its last third.
    Real curves flatten, so the estimate errs in its favour.
    """
    lens = DenseHeadLens.start(model, layer)
    points = [(0.0, 0, float(judge.kl({layer: lens})[layer].mean()))]
    spent = 0.0
    pieces = min(3, steps)
    for piece in range(pieces):
        config = GradientConfig(steps=-(-steps // pieces), rows=1, seed=piece)
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
