"""Lenses on disk: what comes back is what was saved, and what is not whole is refused."""

import copy
import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from saccade.distributed import Processes
from saccade.errors import LensError, SaccadeError, UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.model import open_model, wrap_model
from saccade.interp.lenses.batches import CorpusBatches
from saccade.interp.lenses.fit import fit_on
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.lens_set import LENSES, STATISTICS, load_lenses, read_provenance


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
    assert loaded.provenance == lenses.provenance == read_provenance(saved)
    assert loaded.quality == lenses.quality and loaded.sites == lenses.sites
    assert torch.equal(loaded.baseline, lenses.baseline)
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
    lenses_made = fitted(stories, told[:17, :13], corpus_of, tmp_path, **settings)
    lenses_made.save(tmp_path / "lens")
    loaded = load_lenses(tmp_path / "lens", stories)
    assert set(loaded.by_layer) == {1, 4}
    for layer, lens in lenses_made.by_layer.items():
        found = loaded.by_layer[layer].state_dict()
        assert all(torch.equal(found[name], value) for name, value in lens.state_dict().items())


def test_all_lenses_together_say_what_each_says_alone(stories, lenses, told):
    captured = capture(stories, told[100:102])
    activation = {layer: z.flatten(0, 1)[::9] for layer, z in captured.z.items()}
    found = lenses.logits(activation)
    assert found.shape[1] == len(lenses.sites) == 40
    for place, (layer, head) in enumerate(lenses.sites):
        alone = lenses.by_layer[layer](activation[layer])[:, head]
        torch.testing.assert_close(found[:, place], alone, atol=1e-4, rtol=1e-4)


def test_another_models_lenses_are_refused(stories, folder):
    other = copy.deepcopy(stories.hf)
    with torch.no_grad():
        other.model.layers[2].self_attn.o_proj.weight[3] += 0.1
    cousin = wrap_model(other, stories.tokenizer, name="a cousin")
    message = refused(folder, cousin)
    assert f"was fitted for the model of {stories.name} ({stories.fingerprint})" in message
    assert f"not for that of a cousin ({cousin.fingerprint})" in message


def test_lenses_for_another_tokenizer_are_refused(stories, folder):
    tokenizer = copy.deepcopy(stories.tokenizer)
    tokenizer.add_tokens(["saccade"])
    model = replace(stories, tokenizer=tokenizer)
    assert "was fitted for the tokenizer of" in refused(folder, model)


@pytest.mark.parametrize("file", [LENSES, STATISTICS])
def test_a_truncated_file_is_refused(stories, folder, file):
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[:-7])
    message = refused(folder, stories)
    assert f"{file} is truncated or changed: expected {len(whole)} bytes" in message


def test_a_tampered_file_is_refused(stories, folder):
    data = bytearray((folder / LENSES).read_bytes())
    data[-5] ^= 1
    (folder / LENSES).write_bytes(data)
    assert f"{LENSES} was changed after it was written" in refused(folder, stories)


def test_a_folder_without_lenses_is_refused(stories, folder, tmp_path):
    change(folder, lambda manifest: manifest.pop("provenance"))
    assert "its manifest has no provenance" in refused(folder, stories)
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
    assert " is damaged: " in refused(folder, stories)


def test_a_layer_that_the_file_does_not_hold_is_refused(stories, told, corpus_of, tmp_path):
    settings = {"kind": "tuned", "method": "train", "steps": 1, "layers": (1,)}
    fitted(stories, told[:17, :13], corpus_of, tmp_path, **settings).save(tmp_path / "lens")
    change(tmp_path / "lens", lambda manifest: manifest["layers"].update({"2": 1}))
    assert "does not contain a tuned lens for layer 2" in refused(tmp_path / "lens", stories)


def test_an_unknown_kind_of_lens_is_refused_with_a_way_out(stories, folder):
    change(folder, lambda manifest: manifest["provenance"].update(kind="my-own"))
    with pytest.raises(UsageError, match="no lens kind 'my-own': known are") as raised:
        load_lenses(folder, stories)
    assert "--plugin" in raised.value.hint


def test_figures_can_be_put_beside_lenses(lenses):
    quality = {"share": {str(layer): [0.5] * 8 for layer in lenses.by_layer}}
    scored = lenses.with_quality(quality)
    assert scored.quality_of(2, 7) == {"share": 0.5}
    assert set(lenses.quality_of(2, 7)) == {"kl", "gain"}  # the first ones are as they were


# -- What would be silently wrong. --


def rewrite(folder, name, edit):
    """Change tensors of a file, and the manifest's checksum with them."""
    tensors = load_file(folder / name)
    edit(tensors)
    save_file(tensors, folder / name)
    data = (folder / name).read_bytes()
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    change(folder, lambda manifest: manifest["files"].update({name: entry}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("file", "name"), [(LENSES, "2.weight"), (STATISTICS, "3.scatter.zz")])
def test_numbers_that_are_not_finite_are_refused_though_the_checksum_is_right(
    stories, folder, file, name, value
):
    rewrite(folder, file, lambda tensors: tensors[name].view(-1)[7:8].fill_(value))
    assert f"cannot be read: {name} is not finite" in refused(folder, stories)


def test_lenses_that_are_not_finite_are_not_saved_over_sound_ones(lenses, folder):
    broken = replace(lenses, by_layer=copy.deepcopy(lenses.by_layer))
    broken.by_layer[3].weight.data[1, 0, 0] = float("nan")
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(LensError, match=r"not saved: 3\.weight is not finite"):
        broken.save(folder)
    assert (folder / "manifest.json").read_bytes() == before


def fields_of(value, path=()):
    """The path of every field of a manifest, those of nested objects too."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from fields_of(inner, (*path, name))


ROPE = {"rope_type": "default", "rope_theta": 77.0}
WRONG = (None, "text", -1, [], [None], True)


def loaded_or_told(folder, model):
    try:
        return load_lenses(folder, model)
    except SaccadeError as error:
        return f"{error}; {error.hint}"


def accepts_any(path):
    """Settings, versions and names are for people, and may say anything of their type."""
    return path[:2] in (("provenance", "settings"), ("provenance", "versions"))


def test_every_field_of_the_manifest_is_checked(stories, folder):
    """A field that is missing, or of another type, is refused in one line or read as before."""
    text = (folder / "manifest.json").read_text()
    manifest = json.loads(text)
    expected = load_lenses(folder, stories)
    accepted = []
    for path in fields_of(manifest):
        for wrong in (*WRONG, "missing"):
            edited = json.loads(text)
            *parents, last = path
            at = edited
            for name in parents:
                at = at[name]
            if wrong == "missing":
                del at[last]
            else:
                at[last] = wrong
            (folder / "manifest.json").write_text(json.dumps(edited))
            found = loaded_or_told(folder, stories)
            if isinstance(found, str):
                assert "\n" not in found
                continue
            for layer, lens in expected.by_layer.items():
                for name, value in lens.state_dict().items():
                    assert torch.equal(found.by_layer[layer].state_dict()[name], value)
            if not accepts_any(path):
                accepted.append((path, wrong))
    # What can be changed without a token: text for people, numbers in their range, metrics of
    # lenses, the probe of the model left out.
    named = {path for path, _ in accepted}
    harmless = {"model", "method", "objective", "corpus", "corpus_fingerprint", "n_tokens", "seed"}
    optional = {"settings", "versions", "probe", "objective", "seed", STATISTICS}
    for path in named:
        assert path[0] == "quality" or path[-1] in harmless | optional, path


def test_lenses_of_a_version_that_left_out_bos_are_refused(stories, folder):
    change(folder, lambda manifest: manifest["provenance"].pop("prefix"))
    told = refused(folder, stories)
    assert "on text without the tokens that the tokenizer puts in front of a prompt" in told


def test_lenses_are_refused_when_the_model_computes_something_else(stories, folder):
    change(folder, lambda manifest: manifest["provenance"].update(probe=[9.0] * len(stories.probe)))
    assert "gave other outputs" in refused(folder, stories)


@pytest.mark.parametrize(
    "setting", [{"rms_norm_eps": 1e-2}, {"hidden_act": "gelu"}, {"rope_parameters": ROPE}]
)
def test_lenses_are_refused_for_the_same_weights_with_another_config(
    stories, folder, tmp_path, setting
):
    copied = shutil.copytree(stories.name, tmp_path / "model")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, **setting}))
    assert "was fitted for the model of" in refused(folder, open_model(copied))
