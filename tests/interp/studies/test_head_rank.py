"""The scores of every head, checked one head at a time with hand-written hooks."""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack

import pytest
import torch
from torch.nn.functional import kl_div
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.interp.effects.replacement import Replacement, reference_text
from saccade.interp.effects.target import Target, find_target, first_token
from saccade.interp.heads.capture import capture, head_outputs
from saccade.interp.heads.intervene import Ablate, intervene, mean_z
from saccade.interp.heads.residual_path import direct_logits
from saccade.interp.studies.head_rank import rank_heads, self_repair

TEXT = "Once upon a time, there was a little girl named"
CLOSE = {"atol": 2e-4, "rtol": 1e-3}


@torch.no_grad()
def logits_by_hand(model, ids, layer, head, value):
    """The prediction of a whole run, with a value for the head's z at the last token."""
    at = model.layer(layer)

    def hook(_, args):
        z = args[0].clone().view(*ids.shape, at.n_heads, at.d_head)
        z[:, -1, head] = value
        return (z.flatten(-2),)

    with at.projection.register_forward_pre_hook(hook):
        return model.hf(input_ids=ids).logits[0, -1].float()


@pytest.fixture
def reference(stories):
    return reference_text(stories, rows=3, window=17)


@pytest.fixture
def target(stories):
    return find_target(stories, TEXT, "Lily", "Tom")


@pytest.mark.parametrize("by", ["zero", "mean", "resample", "prompt"])
@torch.no_grad()
def test_effects_are_those_of_one_head_at_a_time_in_whole_runs(stories, reference, target, by):
    ids = stories.encode(TEXT)
    replacement = {
        "zero": lambda: Replacement.zero(stories),
        "mean": lambda: Replacement.mean(stories, reference),
        "resample": lambda: Replacement.resampled(stories, reference, seed=2),
        "prompt": lambda: Replacement.last_of(stories, stories.encode("Tom saw a cat. He")),
    }[by]()
    ranking = rank_heads(stories, TEXT, target, replacement=replacement)
    assert len(ranking.heads) == stories.n_heads and ranking.ablation == by
    plain = stories.hf(input_ids=ids).logits[0, -1].float()
    whole = float(target.score(plain))
    assert ranking.score == pytest.approx(whole, rel=1e-4)
    values = replacement.at_last().heads
    for each in ranking.heads:
        value = values[each.layer][each.head]
        without = logits_by_hand(stories, ids, each.layer, each.head, value)
        assert each.effect == pytest.approx(whole - float(target.score(without)), abs=2e-4)
        kl = kl_div(
            without.log_softmax(-1), plain.log_softmax(-1), log_target=True, reduction="sum"
        )
        assert each.kl == pytest.approx(float(kl), abs=1e-5, rel=1e-2)


def test_direct_is_direct_logit_attribution(stories, target):
    ranking = rank_heads(stories, TEXT, target, replacement=Replacement.zero(stories))
    captured = capture(stories, stories.encode(TEXT), residual=True)
    tokens = torch.tensor([[target.token]]), torch.tensor([[target.against]])
    for layer, row in ranking.by_layer("direct").items():
        mine, theirs = (direct_logits(stories, captured, layer, w, positions=[-1]) for w in tokens)
        assert_close(row, (mine - theirs)[0, 0], **CLOSE)


def test_without_a_second_token_the_mean_of_all_is_subtracted(stories):
    logits = torch.randn(2, stories.d_vocab, generator=torch.Generator().manual_seed(1))
    target = Target(7)
    assert_close(target.score(logits), logits[:, 7] - logits.mean(-1))
    state = torch.randn(3, stories.d_model, generator=torch.Generator().manual_seed(2))
    found = state @ target.direction(stories.unembedding)
    assert_close(found, target.score(stories.unembedding.linear(state)), **CLOSE)


def test_the_parts_of_a_repair_add_up_and_are_those_of_a_run_by_hand(stories, reference, target):
    replacement = Replacement.mean(stories, reference)
    repair = self_repair(stories, TEXT, target, replacement=replacement)
    ids, mean = stories.encode(TEXT), mean_z(stories, reference)
    clean = capture(stories, ids, residual=True)
    along = target.direction(stories.unembedding)
    norm = stories.final_norm
    assert len(repair) == stories.n_heads
    for (layer, head), found in repair.items():
        parts = found.heads + found.feed_forward + found.norm
        assert found.total == pytest.approx(found.direct - parts, abs=1e-4)
        at = stories.layer(layer)
        without = float(target.score(logits_by_hand(stories, ids, layer, head, mean[layer][head])))
        whole = float(target.score(stories.unembedding.logits(clean.final[0, -1])))
        assert found.total == pytest.approx(whole - without, abs=2e-4)
        z = clean.z[layer][:, -1:].clone()
        before = head_outputs(at, z)[0, 0, head]
        z[:, :, head] = mean[layer][head]
        lost = before - head_outputs(at, z)[0, 0, head]
        direct = norm.frozen(lost, clean.final_residual[0, -1]) @ along
        assert found.direct == pytest.approx(float(direct), abs=2e-4)


def test_nothing_repairs_the_last_layers_heads_but_its_feed_forward_and_the_norm(stories, target):
    repair = self_repair(stories, TEXT, target, replacement=Replacement.zero(stories))
    last = stories.layers[-1].index
    assert all(found.heads == 0 for (layer, _), found in repair.items() if layer == last)
    assert any(abs(found.heads) > 1e-3 for (layer, _), found in repair.items() if layer < last)


@torch.no_grad()
def test_the_answers_are_those_of_the_later_parts_watched_one_by_one(stories, reference, target):
    ids, mean = stories.encode(TEXT), mean_z(stories, reference)
    layer, head = 1, 4
    found = self_repair(stories, TEXT, target, replacement=Replacement.mean(stories, reference))

    def watched():
        """What each attention and each feed-forward part writes at the last token."""
        wrote = {}
        with ExitStack() as stack:
            for at in stories.layers:
                for name in ("self_attn", "mlp"):

                    def keep(_, __, output, key=(at.index, name)):
                        output = output[0] if isinstance(output, tuple) else output
                        wrote[key] = output[0, -1]

                    stack.enter_context(getattr(at.block, name).register_forward_hook(keep))
            run = capture(stories, ids, residual=True)
        return wrote, run

    clean, before = watched()
    value = mean[layer][head]
    last = [ids.shape[1] - 1]
    with intervene(stories, Ablate(layer, head, "mean", value, positions=last)):
        changed, after = watched()
    along, norm = target.direction(stories.unembedding), stories.final_norm

    def worth(vector):
        return float(norm.frozen(vector, before.final_residual[0, -1]) @ along)

    more = {key: worth(changed[key] - clean[key]) for key in clean}
    heads = sum(more[i, "self_attn"] for i in range(layer + 1, stories.n_layers))
    feed_forward = sum(more[i, "mlp"] for i in range(layer, stories.n_layers))
    assert found[layer, head].heads == pytest.approx(heads, abs=2e-4)
    assert found[layer, head].feed_forward == pytest.approx(feed_forward, abs=2e-4)
    assert found[layer, head].direct == pytest.approx(-more[layer, "self_attn"], abs=2e-4)
    end = after.final_residual[0, -1]
    rescaled = stories.final_norm.module(end) - norm.frozen(end, before.final_residual[0, -1])
    assert found[layer, head].norm == pytest.approx(float(rescaled @ along), abs=5e-4)


def test_the_first_token_of_a_word_is_the_one_that_would_come_next(stories):
    next_to = stories.encode("a Lily")[0, stories.encode("a").shape[1]]
    for token, text in ((" Lily", "named"), ("Lily", "named"), (" Lily", "named ")):
        assert first_token(stories, token, text) == next_to
    with pytest.raises(UsageError, match="the token is empty"):
        first_token(stories, "  ", "named")


def test_words_with_the_same_first_token_are_refused(stories):
    with pytest.raises(UsageError, match="begin with the same token"):
        find_target(stories, TEXT, "Lily", " Lily")


def test_another_prompt_of_another_length_is_refused(stories):
    with pytest.raises(UsageError, match="the other prompt has"):
        Replacement.other_prompt(stories, stories.encode("Once upon"), length=11)


def test_a_ranking_goes_into_json_and_back(stories, target):
    ranking = rank_heads(stories, TEXT, target, replacement=Replacement.zero(stories))
    loaded = json.loads(ranking.to_json())
    assert [h["effect"] for h in loaded["heads"]] == [h.effect for h in ranking.heads]
    columns = ([head[name] for head in loaded["heads"]] for name in ("direct", "effect"))
    assert loaded["agreement"] == pytest.approx(statistics.correlation(*columns), abs=1e-4)
    effects = [abs(head.effect) for head in ranking.ranked()]
    assert effects == sorted(effects, reverse=True)
