"""The split of a score adds up to the model's own, and its parts are those of changed models."""

from __future__ import annotations

import copy

import pytest
import torch
from families import FAMILIES, tiny
from torch import nn

from saccade.errors import ModelError, UsageError
from saccade.interp.effects.edge import edge_score
from saccade.interp.heads.attention_weights import recorded_kernels
from saccade.interp.heads.capture import run_base
from saccade.interp.heads.changes import Ablate
from saccade.interp.heads.intervene import intervene
from saccade.interp.heads.model import wrap_model

REFUSED = {"bloom", "gpt_neo", "gptj"}  # they compute their scores by themselves
LEARNT = {"gpt2", "opt"}  # position is added to the embedding


@pytest.fixture(scope="session")
def opened():
    """The tiny model of a family; in `tiny` the query and key weights of some are the same."""
    made = {}

    def make(family):
        if family not in made:
            hf = copy.deepcopy(tiny(family))
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for weight in hf.parameters():
                    weight.add_(0.3 * weight.std() * torch.randn(weight.shape, generator=generator))
            made[family] = wrap_model(hf, None, name=family)
        return made[family]

    return make


def kernel_scores(model, layer, ids):
    """``[head, query_pos, key_pos]``, and the weights, as the model's kernel has them."""
    found = []

    def give(_, kernel, weights):
        group = kernel.query.shape[1] // kernel.key.shape[1]
        key = kernel.key[0].repeat_interleave(group, 0)
        found.extend([kernel.query[0] @ key.mT * kernel.scaling, weights[0]])

    with torch.no_grad(), recorded_kernels(model.hf, [model.layer(layer)], give):
        run_base(model.hf, ids)
    return found


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - REFUSED))
def test_parts_add_up_to_the_models_own_score(opened, ids, family):
    model, layer = opened(family), 2
    scores, weights = kernel_scores(model, layer, ids[:1])
    for head, query, key in ((0, 10, 7), (2, 9, 9), (1, 8, 5)):
        found = edge_score(model, ids[:1], (layer, head), query=query, key=key)
        own = float(scores[head, query, key])
        assert found.score == pytest.approx(own, rel=1e-4, abs=1e-4)
        assert float(found.matrix.sum()) == pytest.approx(own, rel=1e-4, abs=1e-4)
        for parts in (found.query_parts, found.key_parts):
            assert sum(part.value for part in parts) == pytest.approx(own, rel=1e-4, abs=1e-4)
        assert found.weight == pytest.approx(float(weights[head, query, key]), rel=1e-4)
        assert len(found.by_distance) == query + 1
        assert found.by_distance[query - key] == pytest.approx(own, rel=1e-4, abs=1e-4)
        n_heads = model.layer(0).n_heads
        heads = {f"{lower}.{each}" for lower in range(layer) for each in range(n_heads)}
        assert heads <= set(found.names)
        assert ("position" in found.names) == (family in LEARNT)
        assert not [name for name in found.names if name.startswith("before")]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "olmo2", "granite"])
def test_one_score_above_another_is_the_log_ratio_of_their_weights(opened, ids, family):
    model = opened(family)
    weights = kernel_scores(model, 2, ids[:1])[1]
    found = edge_score(model, ids[:1], (2, 1), key=6, against=3)
    ratio = weights[1, -1, 6].log() - weights[1, -1, 3].log()
    assert found.score == pytest.approx(float(ratio), abs=2e-4)
    assert float(found.matrix.sum()) == pytest.approx(float(ratio), abs=2e-4)
    assert found.against_weight == pytest.approx(float(weights[1, -1, 3]), rel=1e-4)
    pair = found.pairs(1)[0]
    place = found.names.index(pair.query), found.names.index(pair.key)
    assert float(found.matrix[place]) == pair.value
    assert abs(pair.value) == float(found.matrix.abs().max())


def without_norm_and_feed_forward():
    """Layer 1 reads the stream itself, which is the embedding and the heads of layer 0."""
    hf = copy.deepcopy(tiny("llama"))
    hf.model.layers[1].input_layernorm = nn.Identity()
    with torch.no_grad():
        hf.model.layers[0].mlp.down_proj.weight.zero_()
    return wrap_model(hf, None, name="plain")


def test_the_part_of_a_head_is_what_the_score_loses_without_it(ids):
    """Exact where there is no norm whose scale would change with it."""
    model = without_norm_and_feed_forward()
    query, key, head = 9, 4, (1, 3)
    found = edge_score(model, ids[:1], head, query=query, key=key)
    for side, position in ((found.query_parts, query), (found.key_parts, key)):
        by_name = dict(side)
        for source in range(model.layer(0).n_heads):
            with intervene(model, [Ablate(0, source, positions=[position])]):
                without = float(kernel_scores(model, 1, ids[:1])[0][head[1], query, key])
            lost = found.score - without
            assert by_name[f"0.{source}"] == pytest.approx(lost, abs=2e-4)
        assert by_name.get("0.feed-forward", 0.0) == pytest.approx(0, abs=1e-5)


def test_a_pair_is_what_the_score_loses_beyond_its_two_parts(ids):
    model = without_norm_and_feed_forward()
    query, key, head = 9, 4, (1, 3)
    found = edge_score(model, ids[:1], head, query=query, key=key)
    changes = [Ablate(0, 2, positions=[query]), Ablate(0, 5, positions=[key])]
    scores = []
    for some in (changes[:1], changes[1:], changes):
        with intervene(model, some):
            scores.append(float(kernel_scores(model, 1, ids[:1])[0][head[1], query, key]))
    pair = found.score - scores[0] - scores[1] + scores[2]
    place = found.names.index("0.2"), found.names.index("0.5")
    assert float(found.matrix[place]) == pytest.approx(pair, abs=2e-4)


@pytest.mark.parametrize("family", ["llama", "phi", "gemma3_text"])
def test_the_score_at_another_distance_is_that_of_the_same_token_there(opened, ids, family):
    """In the first layer, where keys have nothing but their token and their position."""
    model, query, key = opened(family), 10, 7
    found = edge_score(model, ids[:1], (0, 2), query=query, key=key)
    assert set(found.names) <= {"embedding", "bias"}
    moved = ids[:1].clone()
    moved[0, :query] = ids[0, key]
    scores = kernel_scores(model, 0, moved)[0][2, query]
    expected = scores[: query + 1].flip(0)
    torch.testing.assert_close(
        torch.tensor(found.by_distance)[1:], expected[1:], atol=1e-4, rtol=1e-4
    )
    mean = sum(found.by_distance) / (query + 1)
    assert found.by_position == pytest.approx(float(expected[query - key]) - mean, abs=2e-4)


def test_without_rotary_position_the_score_is_the_same_at_all_distances(opened, ids):
    found = edge_score(opened("gpt2"), ids[:1], (1, 0), key=4)
    assert found.by_position == pytest.approx(0, abs=1e-4)


def test_the_json_has_every_part_and_the_largest_pairs(opened, ids):
    found = edge_score(opened("llama"), ids[:1], (2, 1), key=-3)
    row = found.to_dict()
    assert row["key"] == ids.shape[1] - 3 and row["query"] == ids.shape[1] - 1
    assert len(row["query_parts"]) == len(row["key_parts"]) == len(found.names)
    assert sum(each["value"] for each in row["key_parts"]) == pytest.approx(row["score"], abs=1e-3)
    sizes = [abs(each["value"]) for each in row["pairs"]]
    assert len(sizes) == 50 and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"query": 3, "key": 4}, "the key at position 4 comes after the query at position 3"),
        ({"key": 11}, "no position 11: the text has 11 tokens"),
        ({"query": -12, "key": 0}, "no position -12"),
        ({"key": 2, "against": 40}, "no position 40"),
        ({"key": 2, "against": -9}, "both keys are at position 2"),
    ],
)
def test_an_edge_that_is_not_there_is_refused(opened, ids, asked, words):
    with pytest.raises(UsageError, match=words):
        edge_score(opened("llama"), ids[:1], (1, 0), **asked)


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_families_whose_scores_cannot_be_seen_are_refused(opened, ids, family):
    with pytest.raises(ModelError, match="computes its scores by itself"):
        edge_score(opened(family), ids[:1], (1, 0), key=4)


def test_a_stream_that_blocks_norm_again_is_refused(ids):
    hf = copy.deepcopy(tiny("opt"))
    for layer in hf.model.decoder.layers:
        layer.do_layer_norm_before = False
    hf.model.decoder.final_layer_norm = None
    model = wrap_model(hf, None, name="post-norm")
    with pytest.raises(ModelError, match="its block norms again"):
        edge_score(model, ids[:1], (2, 0), key=4)
