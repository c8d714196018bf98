"""Lenses on disk: what comes back is what was saved, and what is not whole is refused."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch

from saccade.errors import LensError, UsageError
from saccade.heads import capture, wrap_model
from saccade.lenses.batches import CorpusBatches
from saccade.lenses.collection import LENSES, STATISTICS, load_lenses, read_made
from saccade.lenses.fit import fit_on
from saccade.lenses.fit_config import FitConfig
from saccade.processes import Processes


def fitted(model, windows, corpus_of, cache, **settings):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SACCADE_CACHE", str(cache))
        batches = CorpusBatches(model, corpus_of(windows), rows=13)
        return fit_on(model, batches, FitConfig(**settings), processes=Processes())


@pytest.fixture(scope="module")
def lenses(stories, told, corpus_of, tmp_path_factory):
    return fitted(stories, told[:40], corpus_of, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def saved(lenses, tmp_path_factory):
    lenses.save(path := tmp_path_factory.mktemp("saved") / "lens")
    return path


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(saved, tmp_path / "lens")


def change(folder, edit):
    manifest = json.loads((folder / "manifest.json").read_text())
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def refused(folder, model):
    with pytest.raises(LensError) as raised:
        load_lenses(folder, model)
    assert raised.value.hint
    return str(raised.value)


def test_what_is_loaded_is_what_was_saved(stories, lenses, saved):
    loaded = load_lenses(saved, stories)
    assert loaded.made == lenses.made == read_made(saved)
    assert loaded.quality == lenses.quality and loaded.sites == lenses.sites
    assert torch.equal(loaded.constant, lenses.constant)
    for layer, lens in lenses.by_layer.items():
        found = loaded.by_layer[layer].state_dict()
        assert all(torch.equal(found[name], value) for name, value in lens.state_dict().items())
    sums = loaded.statistics.sums
    assert sums.keys() == lenses.statistics.sums.keys()
    assert all(torch.equal(sums[name], each) for name, each in lenses.statistics.sums.items())
    assert torch.equal(loaded.held_out.final, lenses.held_out.final)
    assert all(torch.equal(loaded.held_out.z[k], z) for k, z in lenses.held_out.z.items())
    assert not any(p.requires_grad for each in loaded.by_layer.values() for p in each.parameters())


@pytest.mark.parametrize("kind", ["dense", "tuned"])
def test_other_kinds_come_back_too(stories, told, corpus_of, tmp_path, kind):
    settings = {"kind": kind, "method": "train", "steps": 1, "layers": (1, 4)}
    made = fitted(stories, told[:17, :13], corpus_of, tmp_path, **settings)
    made.save(tmp_path / "lens")
    loaded = load_lenses(tmp_path / "lens", stories)
    assert set(loaded.by_layer) == {1, 4}
    for layer, lens in made.by_layer.items():
        found = loaded.by_layer[layer].state_dict()
        assert all(torch.equal(found[name], value) for name, value in lens.state_dict().items())


def test_all_lenses_together_say_what_each_says_alone(stories, lenses, told):
    captured = capture(stories, told[100:102])
    held = {layer: z.flatten(0, 1)[::9] for layer, z in captured.z.items()}
    found = lenses.logits(held)
    assert found.shape[1] == len(lenses.sites) == 40
    for place, (layer, head) in enumerate(lenses.sites):
        alone = lenses.by_layer[layer](held[layer])[:, head]
        torch.testing.assert_close(found[:, place], alone, atol=1e-4, rtol=1e-4)


def test_another_models_lenses_are_refused(stories, folder):
    other = copy.deepcopy(stories.hf)
    with torch.no_grad():
        other.model.layers[2].self_attn.o_proj.weight[3] += 0.1
    cousin = wrap_model(other, stories.tokenizer, name="a cousin")
    words = refused(folder, cousin)
    assert f"was fitted for the model of {stories.name} ({stories.fingerprint})" in words
    assert f"not for that of a cousin ({cousin.fingerprint})" in words


def test_lenses_for_another_tokenizer_are_refused(stories, folder):
    tokenizer = copy.deepcopy(stories.tokenizer)
    tokenizer.add_tokens(["saccade"])
    model = replace(stories, tokenizer=tokenizer)
    assert "was fitted for the tokenizer of" in refused(folder, model)


@pytest.mark.parametrize("file", [LENSES, STATISTICS])
def test_a_truncated_file_is_refused(stories, folder, file):
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[:-7])
    words = refused(folder, stories)
    assert f"{file} is cut short or changed: expected {len(whole)} bytes" in words


def test_a_tampered_file_is_refused(stories, folder):
    data = bytearray((folder / LENSES).read_bytes())
    data[-5] ^= 1
    (folder / LENSES).write_bytes(data)
    assert f"{LENSES} was changed after it was written" in refused(folder, stories)


def test_a_folder_without_lenses_is_refused(stories, folder, tmp_path):
    change(folder, lambda manifest: manifest.pop("made"))
    assert "its manifest does not say what they were made for" in refused(folder, stories)
    assert "there is no such folder" in refused(tmp_path / "nowhere", stories)
    (tmp_path / "empty").mkdir()
    assert "no manifest.json in it" in refused(tmp_path / "empty", stories)


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest.pop("layers"),
        lambda manifest: manifest.pop("quality"),
        lambda manifest: manifest["layers"].update({"x": 8}),
    ],
)
def test_a_manifest_that_lost_a_part_is_refused(stories, folder, edit):
    change(folder, edit)
    assert "is damaged: expected layers, quality and a constant lens" in refused(folder, stories)


def test_a_layer_that_the_file_does_not_hold_is_refused(stories, told, corpus_of, tmp_path):
    settings = {"kind": "tuned", "method": "train", "steps": 1, "layers": (1,)}
    fitted(stories, told[:17, :13], corpus_of, tmp_path, **settings).save(tmp_path / "lens")
    change(tmp_path / "lens", lambda manifest: manifest["layers"].update({"2": 1}))
    assert "does not hold a tuned lens for layer 2" in refused(tmp_path / "lens", stories)


def test_an_unknown_kind_of_lens_is_refused_with_a_way_out(stories, folder):
    change(folder, lambda manifest: manifest["made"].update(kind="my-own"))
    with pytest.raises(UsageError, match="no lens kind 'my-own': known are") as raised:
        load_lenses(folder, stories)
    assert "--plugin" in raised.value.hint


def test_figures_can_be_put_beside_lenses(lenses):
    quality = {"share": {str(layer): [0.5] * 8 for layer in lenses.by_layer}}
    scored = lenses.with_quality(quality)
    assert scored.quality_of(2, 7) == {"share": 0.5}
    assert set(lenses.quality_of(2, 7)) == {"kl", "gain"}  # the first ones are as they were
