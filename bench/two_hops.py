"""Measure what memory injection does for two-hop questions; prints JSON.

    python bench/two_hops.py [--model NAME] [--layers 9,12] [--lens FOLDER] [--corpus FILE]

The questions are those of saccade/interp/studies/data/two_hops.json whose single hops the model
knows. What is injected where is chosen on each half of them, by bridge, and judged on the other.
"""

from __future__ import annotations

import argparse
import json
import time

from saccade.cli.options import showing_progress
from saccade.interp.heads.model import DEFAULT_MODEL, open_model
from saccade.interp.lenses.lens_set import load_lenses
from saccade.interp.studies.edit.search import MOST_COST, UnrelatedText
from saccade.interp.studies.edit.two_hop import known_two_hops, measure_two_hops, two_hops
from saccade.interp.studies.head_rank import reference_text


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--layers", help="with commas; every third without it")
    parser.add_argument("--lens", help="a folder; the heads its lenses point to are tried too")
    parser.add_argument("--most-cost", type=float, default=MOST_COST, help="share of perplexity")
    parser.add_argument("--corpus", help="unrelated text; the model's own without it")
    parser.add_argument("--rows", type=int, default=16, help="windows of unrelated text")
    parser.add_argument("--window", type=int, default=128, help="tokens in each")
    given = parser.parse_args()
    start = time.monotonic()
    model = open_model(given.model)
    known = known_two_hops(model, two_hops())
    text = reference_text(model, given.corpus, rows=given.rows, window=given.window)
    with showing_progress() as progress:
        report = measure_two_hops(
            model,
            known,
            unrelated=UnrelatedText(model, text),
            layers=given.layers and [int(layer) for layer in given.layers.split(",")],
            lenses=given.lens and load_lenses(given.lens, model),
            most_cost=given.most_cost,
            progress=progress,
        )
    seconds = round(time.monotonic() - start)
    found = {"questions": len(two_hops()), "known": len(known), "seconds": seconds}
    print(json.dumps({**found, **report.to_dict()}, indent=2))


if __name__ == "__main__":
    main()
