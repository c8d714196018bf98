"""Models on a device that is not the CPU are read as models on the CPU are.

There is no GPU in the tests; `second_device.py` plays one: a tensor that was not moved is refused,
and what is computed there must be what is computed here. Commands are in `tests/cli`.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from second_device import DEVICE, assert_same, second_device

from saccade.interp.effects.replacement import Replacement
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import (
    Ablate,
    InjectHead,
    InjectResidual,
    Patch,
    Scale,
    intervene,
    mean_z,
)
from saccade.interp.heads.model import wrap_model
from saccade.interp.lenses import fit
from saccade.interp.lenses.corpus import read_corpus
from saccade.interp.lenses.evaluate import evaluate_lenses
from saccade.interp.lenses.fit import fit_lenses
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.lens_set import load_lenses
from saccade.interp.lenses.self_text import write_corpus
from saccade.interp.readings.generation import generate
from saccade.interp.readings.reader import read
from saccade.interp.readings.reading_table import predictions
from saccade.interp.readings.text_run import TextRun
from saccade.interp.readings.views import Site, Span, head_card, position_grid, token_ranks
from saccade.interp.studies.head_measures import lens_kl, mass_on_words
from saccade.interp.studies.intervention_trial import Acted, what_happened
from saccade.interp.studies.prompt_contrast import compare_prompts
from saccade.interp.studies.transfer import share_lenses

sys.path.insert(0, str(Path(__file__).parent / "heads"))  # for families.py

from families import VOCAB, tiny

TEXT = "Once upon a time there was a little dog"
SMALL = {"tokens": 600, "window": 30, "rows": 4}
# Adam divides noise by noise where a lens starts at its optimum, as a tuned one of the last layer.
INNER = {"layers": (1, 2), "steps": 2}


def moved(hf):
    """A copy on the second device, whose weights stay tied as a GPU would leave them."""
    hf = copy.deepcopy(hf).to(DEVICE)
    hf.tie_weights()
    return hf


@pytest.fixture(scope="module")
def there(stories):
    """The little model on the second device."""
    with second_device():
        return wrap_model(moved(stories.hf), stories.tokenizer, name=stories.name)


@pytest.fixture(scope="module")
def text_file(stories, tmp_path_factory):
    """A few stories that the model tells."""
    told = write_corpus(stories, n_tokens=600, window=60, seed=7)
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    text = stories.tokenizer.batch_decode(told.windows, skip_special_tokens=True)
    path.write_text("\n".join(text), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def lenses(stories, text_file, tmp_path_factory):
    """Lenses of the little model in closed form, with the sums they were solved from."""
    folder = tmp_path_factory.mktemp("lens") / "lens"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SACCADE_CACHE", str(folder.parent / "cache"))
        return fit_lenses(stories, text_file, FitConfig(**SMALL), save_to=folder), folder


def test_a_model_is_the_same_elsewhere(stories, there):
    assert there.device == there.unembedding.weight.device == DEVICE
    with second_device():
        assert there.encode(TEXT).device == DEVICE
        assert there.fingerprint == stories.fingerprint


# Among them: biases and Conv1D, norms on both sides with caps, ALiBi, parallel blocks, a scale.
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bloom", "gpt_neox", "cohere"])
def test_a_model_of_any_family_is_opened_and_captured(family):
    hf = tiny(family)
    here = wrap_model(hf, None, name=family)
    ids = torch.arange(22).view(2, 11) % VOCAB
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, 8:] = False
    asked = {"residual": True, "attention": [here.layers[0].index]}
    wanted = capture(here, ids, mask=mask, **asked)
    with second_device():
        found = capture(wrap_model(moved(hf), None, name=family), ids, mask=mask, **asked)
        assert found.final.device == DEVICE
    for mine, other in zip(found, wanted, strict=True):
        assert_same(mine, other)


def changes_of(z, stream):
    """One of each kind."""
    return [
        Ablate(layer=0, head=1),
        Ablate(layer=0, head=2, by="mean", value=z[0][0].mean(0)[2]),
        Scale(layer=1, head=3, factor=0.5, positions=[-1]),
        Patch(layer=2, head=0, z=z[2][0, 3, 0], positions=[2, 4]),
        InjectHead(layer=3, head=1, vector=z[3][0, 1, 1], strength=2.0, rows=[0]),
        InjectResidual(layer=1, vector=stream[1][0, 2], strength=0.1),
    ]


def test_interventions_do_the_same(stories, there):
    ids = stories.encode(TEXT)
    first = capture(stories, ids, residual=True)

    def final(model, here):
        changes = changes_of(first.z, first.residual)  # made on the CPU, wherever the model is
        with intervene(model, changes):
            return capture(model, here).final, mean_z(model, here)

    wanted = final(stories, ids)
    assert not torch.allclose(wanted[0], first.final, atol=0.1)
    with second_device():
        found = final(there, ids.to(DEVICE))
    assert_same(found, wanted)


@pytest.mark.parametrize(
    "config",
    [
        FitConfig(),
        FitConfig(method="polish", steps=2),
        FitConfig(method="train", **INNER),
        FitConfig(kind="tuned"),
        FitConfig(kind="tuned", method="polish", **INNER),
        FitConfig(kind="jacobian"),
        FitConfig(kind="dense", method="train", objective="cross-entropy", **INNER),
    ],
    ids=lambda config: f"{config.kind} {config.method}",
)
def test_lenses_are_fitted_read_and_evaluated(
    config, stories, there, text_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    test = read_corpus(text_file, stories, window=30, max_tokens=300)

    def found(model, folder):
        fit_lenses(model, text_file, replace(config, **SMALL), save_to=tmp_path / folder)
        lenses = load_lenses(tmp_path / folder, model)
        weights = {layer: lens.state_dict() for layer, lens in lenses.by_layer.items()}
        zero = Replacement.zero(model)
        reading = read(model, TEXT, lenses=lenses, top=1, unembedding=True, replacement=zero)
        said = [
            [each.lens.kl_from_baseline if each.lens else None for each in reading.ranked("lens")],
            [(each.effect.on_token, each.effect.direct, each.attends) for each in reading.heads],
        ]
        evaluated = evaluate_lenses(lenses, test, max_positions=40)
        return weights, said, evaluated.lenses.means, evaluated.quality()

    wanted = found(stories, "here")
    with second_device():
        assert_same(found(there, "there"), wanted)


def test_many_prompts_are_read_and_a_text_is_generated(stories, there):
    def found(model):
        zero = Replacement.zero(model)
        readings = read(model, [TEXT, "Tom saw a"], replacement=zero)
        heads = [[(h.effect.kl, h.effect.on_token) for h in each.heads] for each in readings]
        means = [each.mean for each in readings.promoters(" was").heads]
        written = [
            (each.token.id, [head.effect for head in each.heads])
            for each in generate(model, TEXT, tokens=3, replacement=zero)
        ]
        return heads, means, written

    wanted = found(stories)
    with second_device():
        assert_same(found(there), wanted)


def test_lenses_are_fitted_on_text_that_the_model_writes(stories, there, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "WINDOW", 30)  # tokens it writes at once

    def found(model, cache):
        monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / cache))
        return fit_lenses(model, config=FitConfig(tokens=600, rows=4)).baseline

    wanted = found(stories, "here")
    with second_device():
        assert_same(found(there, "there"), wanted)


def test_a_text_is_looked_at_from_every_side(stories, there, lenses, text_file):
    _, folder = lenses
    corpus = read_corpus(text_file, stories, window=30, max_tokens=300)

    def found(model):
        own = load_lenses(folder, model)
        change = Scale(layer=1, head=3, factor=0.2)
        run, after = TextRun(model, TEXT), TextRun(model, TEXT, changes=[change])
        other, span = TextRun(model, TEXT.replace("dog", "cat")), Span(0, 5)
        site = Site(name="lens", lenses=own, head=1)
        token_of = dict(enumerate(model.tokens(list(range(model.d_vocab)))))
        zero = Replacement.zero(model)

        def looked_at(text, target):
            token = token_of[target.token]
            return read(model, text, lenses=own, token=token, top=1, replacement=zero)

        return {
            "predictions": predictions(run, top=2),
            "grid": position_grid(run, site, span, top=2),
            "stream": position_grid(run, Site(name="unembedding", lenses=None), span, top=2),
            "ranks": token_ranks(run, site, span, [300, 310]),
            "card": head_card(run, {"lens": own}, layer=2, head=1, position=-1, top=2).to_dict(),
            "lens": lens_kl(own, after, position=-1).to_dict(),
            "mass": mass_on_words(own, after, ["she", "her"], position=-1).to_dict(),
            "compared": compare_prompts((run, other), looked_at),
            "acted": what_happened(own, Acted(run, after), top=2, say=2),
            "shared": share_lenses(own, corpus).to_dict(),
        }

    wanted = found(stories)
    with second_device():
        assert_same(found(there), wanted)
