"""Measure the effect of memory injection on two-hop questions; prints JSON.

    python bench/two_hops.py [--model NAME] [--layers 9,12] [--lens FOLDER] [--corpus FILE]

The questions are those of saccade/interp/studies/data/two_hops.json whose single hops the model
knows. The setting is chosen on one half of them, split by bridge, and evaluated on the other.
"""

from __future__ import annotations

import argparse
import json
import time

from saccade.cli.options import showing_progress
from saccade.interp.effects.replacement import reference_text
from saccade.interp.heads.model import DEFAULT_MODEL, open_model
from saccade.interp.lenses.lens_set import load_lenses
from saccade.interp.studies.edit.injection_search import MOST_COST, UnrelatedText
from saccade.interp.studies.edit.two_hop import known_two_hops, measure_two_hops, two_hops


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--layers", help="comma-separated; default: every third")
    parser.add_argument(
        "--lens",
        help="a folder of lenses; also tries the heads whose lenses most predict the bridge",
    )
    parser.add_argument(
        "--most-cost",
        type=float,
        default=MOST_COST,
        help="maximum relative increase of the perplexity of unrelated text",
    )
    parser.add_argument("--corpus", help="unrelated text; default: text that the model generates")
    parser.add_argument("--rows", type=int, default=16, help="windows of unrelated text")
    parser.add_argument("--window", type=int, default=128, help="tokens per window")
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
