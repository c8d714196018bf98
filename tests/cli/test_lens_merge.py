"""`saccade lens merge`: one set of lenses from shards."""

import hashlib
import json

import pytest
import torch

from saccade.interp.lenses.lens_set import load_lenses


@pytest.fixture(scope="module")
def shards(stories, story, tmp_path_factory):
    from saccade.interp.lenses.fit import fit_lenses
    from saccade.interp.lenses.fit_config import FitConfig

    folder = tmp_path_factory.mktemp("shards")
    config = FitConfig(tokens=800, window=31)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SACCADE_CACHE", str(folder / "cache"))
        for seed in (0, 1, 2):
            text = story(folder / f"{seed}.txt", sentences=90, seed=seed)
            fit_lenses(stories, text, config, save_to=folder / f"shard-{seed}")
    return [folder / f"shard-{seed}" for seed in (0, 1, 2)]


@pytest.fixture
def merge(saccade, stories):
    def run(*arguments):
        return saccade("lens", "merge", *arguments, "--model", stories.name)

    return run


def test_shards_become_one_set_of_lenses_with_the_text_of_both(merge, shards, stories, tmp_path):
    code, out, err = merge(*shards[:2], "--out", tmp_path / "whole")
    parts = [load_lenses(shard, stories) for shard in shards[:2]]
    whole = load_lenses(tmp_path / "whole", stories)
    assert code == 0 and err == ""
    assert out.startswith(f"40 head lenses for {stories.name}, by closed-form, from 1,560 tokens")
    assert whole.provenance.n_tokens == sum(part.provenance.n_tokens for part in parts)
    both = parts[0].statistics.merge(parts[1].statistics)
    for name, total in whole.statistics.sums.items():
        assert torch.equal(total, both.sums[name])
    assert len(whole.held_out) == sum(len(part.held_out) for part in parts)


def test_json_is_all_that_is_printed(merge, shards, tmp_path):
    code, out, _ = merge(*shards[:2], "--out", tmp_path / "whole", "--json")
    found = json.loads(out)
    assert code == 0 and found["path"] == str(tmp_path / "whole")
    assert set(found["quality"]) == {"kl", "gain"}


def test_a_merged_set_can_be_merged_again(merge, shards, stories, tmp_path):
    assert merge(*shards[:2], "--out", tmp_path / "two")[0] == 0
    assert merge(tmp_path / "two", shards[2], "--out", tmp_path / "three")[0] == 0
    three = load_lenses(tmp_path / "three", stories)
    assert three.statistics.n > load_lenses(tmp_path / "two", stories).statistics.n


def test_a_text_is_not_counted_twice(merge, shards, told_in_a_line, tmp_path):
    assert merge(*shards[:2], "--out", tmp_path / "two")[0] == 0
    code, out, err = merge(tmp_path / "two", shards[0], "--out", tmp_path / "three")
    assert (code, out) == (1, "") and not (tmp_path / "three").exists()
    assert "have the same tokens" in told_in_a_line(err)


def test_what_cannot_be_merged_leaves_what_was_there(merge, shards, told_in_a_line, tmp_path):
    assert merge(*shards[:2], "--out", tmp_path / "whole")[0] == 0
    before = hashlib.sha256((tmp_path / "whole" / "manifest.json").read_bytes()).hexdigest()
    (tmp_path / "empty").mkdir()
    for arguments, expected, tokens in (
        ([shards[0]], 2, "at least two sets of lenses, got 1"),
        ([shards[0], tmp_path / "nowhere"], 1, "there is no such folder"),
        ([shards[0], tmp_path / "empty"], 1, "no manifest.json in it"),
    ):
        code, out, err = merge(*arguments, "--out", tmp_path / "whole")
        assert (code, out) == (expected, "")
        assert tokens in told_in_a_line(err)
    assert hashlib.sha256((tmp_path / "whole" / "manifest.json").read_bytes()).hexdigest() == before


def test_lenses_of_another_model_are_not_merged(saccade, shards, stories, told_in_a_line, tmp_path):
    import copy

    hf = copy.deepcopy(stories.hf)
    with torch.no_grad():
        hf.model.layers[1].mlp.down_proj.weight.mul_(1.5)
    hf.save_pretrained(tmp_path / "cousin")
    stories.tokenizer.save_pretrained(tmp_path / "cousin")
    given = ["--model", tmp_path / "cousin", "--out", tmp_path / "whole"]
    code, out, err = saccade("lens", "merge", *shards, *given)
    assert (code, out) == (1, "")
    assert "was fitted for the model of" in told_in_a_line(err)
    assert not (tmp_path / "whole").exists()
