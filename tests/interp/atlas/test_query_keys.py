"""Contrasts of queries and keys against loops over pairs, planted directions, and the weights."""

from __future__ import annotations

import copy

import pytest
import torch
from families import tiny
from torch import nn
from torch.testing import assert_close

from saccade.errors import ModelError
from saccade.interp.atlas.atlas import merge_atlases
from saccade.interp.atlas.atlas_config import AtlasConfig
from saccade.interp.atlas.atlas_parts import with_directions
from saccade.interp.atlas.build import build_atlas
from saccade.interp.atlas.looks import LARGEST, UNIT, add_to
from saccade.interp.atlas.qk_directions import Groups, separation
from saccade.interp.atlas.query_keys import (
    ATTENDED,
    MASS,
    SCALE,
    UNATTENDED,
    Pairs,
    Turn,
    contrasts,
    held_out,
    pair_sums,
    stacked,
    turns_of,
)
from saccade.interp.heads.attention_weights import recorded_kernels
from saccade.interp.heads.capture import on_input, run_base
from saccade.interp.heads.head_weights import head_weights, rotations
from saccade.interp.heads.model import wrap_model

WINDOW = 5  # of Gemma 2 and Mistral in `families`


@pytest.fixture
def ids():
    return torch.randint(3, 101, (2, 11), generator=torch.Generator().manual_seed(3))


def eager_weights(model, ids):
    """Of the same weights with Hugging Face's own attention: ``[layer][batch, head, q, k]``."""
    eager = copy.deepcopy(tiny(model.name, "eager"))
    eager.load_state_dict(model.hf.state_dict())
    with torch.no_grad():
        return eager(input_ids=ids, output_attentions=True).attentions


def sums_of(model, layer, heads, ids, is_text):
    found = {}
    turn = turns_of(model, [layer], ids[:1])[layer]

    def look(_, kernel, weights):
        pairs = Pairs.of(kernel, weights, heads, is_text, turn)
        found.update(pair_sums(pairs))
        # The product of a query with a key as it sees it is the score.
        group = kernel.query.shape[1] // kernel.key.shape[1]
        keys = kernel.key.repeat_interleave(group, 1)[:, heads]
        scores = kernel.query[:, heads] @ keys.mT
        found["score"] = (pairs.attended * scores).sum((0, 2, 3))

    with torch.no_grad(), recorded_kernels(model.hf, [model.layer(layer)], look):
        run_base(model.hf, ids)
    return found


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "opt", "gemma2", "mistral", "qwen3", "falcon-grouped", "phi"]
)
def test_sums_are_those_of_loops_over_pairs(opened, ids, family):
    model, layer = opened(family), 2
    heads = [2, 0] if model.layer(layer).n_heads < 6 else [5, 1]
    is_text = torch.ones_like(ids, dtype=torch.bool)
    is_text[0, :2] = is_text[1, 4] = False
    found = sums_of(model, layer, heads, ids, is_text)

    streams = {}
    with on_input(model.layer(layer).block, lambda x: streams.update(x=x)), torch.no_grad():
        run_base(model.hf, ids)
    of = head_weights(model, [layer])[layer]
    turn = rotations(model, [of], ids[:1])[layer]
    scaled = of.scaled(streams["x"])
    query, key = of.query.full(scaled), of.key.full(scaled)
    weights = eager_weights(model, ids)[layer]
    slides = family == "mistral" or (family == "gemma2" and layer % 2 == 0)
    for row, head in enumerate(heads):
        attended = torch.zeros(2, query.shape[-1], query.shape[-1])
        mass = 0.0
        for b in range(2):
            for q in range(ids.shape[1]):
                first = max(1, q - WINDOW + 1) if slides else 1
                allowed = range(first, q + 1)
                if not is_text[b, q] or not allowed:
                    continue
                whole = sum(float(weights[b, head, q, k]) for k in allowed)
                mass += whole
                for k in allowed:
                    seen = turn.query[q] @ turn.key[k].T @ key[b, k, of.key_head(head)]
                    pair = torch.outer(query[b, q, head], seen)
                    attended[0] += float(weights[b, head, q, k]) * pair
                    attended[1] += whole / len(allowed) * pair
        assert_close(found[ATTENDED][row] / SCALE, attended[0], atol=1e-3, rtol=2e-3)
        assert_close(found[UNATTENDED][row] / SCALE, attended[1], atol=1e-3, rtol=2e-3)
        assert float(found[MASS][row]) == pytest.approx(mass, rel=1e-4)
        trace = found[ATTENDED][row].trace() / SCALE
        assert float(trace) == pytest.approx(float(found["score"][row]), rel=1e-3, abs=1e-3)


def synthetic(generator, *, n=40, d=11):
    """A head whose queries look for a feature of keys; both have a large mean besides."""
    feature, mean = torch.linalg.qr(torch.randn(d, 2, generator=generator)).Q.T
    is_wanted = torch.randint(0, 2, (3, 2, n), generator=generator) * 2.0 - 1
    has = torch.randint(0, 2, (3, 2, n), generator=generator) * 2.0 - 1
    noise = 0.5 * torch.randn(2, 3, 2, n, d, generator=generator)
    noise = noise - (noise @ mean)[..., None] * mean  # or a head would look for the mean of keys
    query = 2 * is_wanted[..., None] * feature + 3 * mean + noise[0]
    key = 2 * has[..., None] * feature + 3 * mean + noise[1]
    may = torch.ones(n, n).tril().bool()
    may[:, 0] = False
    # Position 0 is not attended to, and query 0 has no key.
    scores = (query @ key.mT).masked_fill(~may, -1e30)
    attended = scores.softmax(-1) * may
    share = attended.sum(-1, keepdim=True) / may.sum(-1, keepdim=True).clamp_min(1)
    eye = torch.eye(d).expand(n, d, d)
    return feature, mean, Pairs(query, key, attended, may * share, Turn(eye, eye))


def test_a_planted_feature_is_the_leading_direction_of_the_contrast_and_not_without_it():
    feature, mean, pairs = synthetic(torch.Generator().manual_seed(0))
    sums = {}
    add_to(sums, pair_sums(pairs))
    found, control = contrasts(sums, 2), contrasts(sums, 1, is_plain=True)
    for head in range(2):
        for side in (found.query, found.key):
            assert abs(float(side[head, :, 0] @ feature)) > 0.95
        for side in (control.query, control.key):
            assert abs(float(side[head, :, 0] @ mean)) > 0.9
        assert float(found.share[head, 0]) > 0.7
        assert float(found.share[head, 0]) >= float(found.share[head, 1])
    attended = pairs.attended - pairs.unattended
    gap = (attended * (pairs.query @ pairs.key.mT)).sum((0, 2, 3)) / pairs.attended.sum((0, 2, 3))
    assert_close(found.whole_gap, gap, rtol=1e-3, atol=1e-3)
    assert (found.gap[:, 0] > 0.6 * gap).all()


def test_the_filter_leaves_what_is_between_the_directions():
    found = contrasts(
        {ATTENDED: torch.randn(3, 7, 7).mul(UNIT).long(), UNATTENDED: torch.zeros(3, 7, 7).long()}
        | {MASS: torch.full((3,), UNIT)},
        2,
    )
    query, key = torch.randn(3, 7), torch.randn(3, 7)
    for head in range(3):
        sides = found.query[head], found.key[head]
        of_query = sides[0] @ (sides[0].T @ query[head])
        of_key = sides[1] @ (sides[1].T @ key[head])
        assert_close(query[head] @ found.filter[head] @ key[head], of_query @ of_key)


def test_heads_of_different_sizes_are_stacked_with_zeros():
    small, large = torch.ones(2, 3, 3), torch.ones(1, 5, 5)
    found = stacked([small, large])
    assert found.shape == (3, 5, 5)
    assert_close(found.sum((1, 2)), torch.tensor([9.0, 9.0, 25.0]))
    assert stacked([torch.ones(2), torch.ones(1)]).shape == (3,)


def test_a_sum_that_is_too_large_is_refused():
    sums = {}
    add_to(sums, {"pairs": torch.tensor([0.9 * LARGEST / UNIT])})
    with pytest.raises(ModelError, match="too large to be exact"):
        add_to(sums, {"pairs": torch.tensor([0.2 * LARGEST / UNIT])})
    for wrong in (float("nan"), float("inf"), -1e30):
        with pytest.raises(ModelError, match="too large to be exact"):
            add_to({}, {"pairs": torch.tensor([wrong])})


# Names and controls.


def test_separation_is_a_count_of_pairs_with_ties_as_half():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(0, 4, (2, 3, 9), generator=generator).float()
    yes, no = torch.rand(2, 3, 9, generator=generator), torch.rand(2, 3, 9, generator=generator)
    no[0, 0, :4] = yes[1, 2, 5:] = 0
    found = separation(scores, yes, no)
    for a in range(2):
        for b in range(3):
            won = total = 0.0
            for i in range(9):
                for j in range(9):
                    pair = float(yes[a, b, i] * no[a, b, j])
                    higher = float(scores[a, b, i] - scores[a, b, j])
                    won += pair * (1.0 if higher > 0 else 0.5 if higher == 0 else 0.0)
                    total += pair
            assert float(found[a, b]) == pytest.approx(won / total, rel=1e-4)


def grouped(values, group, n_groups):
    """`Groups` of one head and one direction; the first half of the values and the second."""
    found = Groups(n_groups, 1, 1)
    for half, (each, of) in enumerate(zip(values.chunk(2), group.chunk(2), strict=True)):
        weight = torch.ones(1, len(each))
        found.add(half, [0], of, weight, each[None, :, None], each.square().sum()[None, None])
    return found


def test_the_share_explained_is_that_of_groups_on_text_that_their_means_do_not_come_from():
    generator = torch.Generator().manual_seed(2)
    group = torch.randint(0, 5, (4000,), generator=generator)
    of_group, noise = torch.randn(5, generator=generator), torch.randn(4000, generator=generator)
    between = float(of_group[group].var())
    values = 7 + of_group[group] + noise
    found = grouped(values, group, 5)
    assert float(found.explained()) == pytest.approx(between / (between + 1), abs=0.03)
    assert float(found.mean) == pytest.approx(float(values.mean()), rel=1e-4)
    expected = (values[group == 3].mean() - values.mean()) / values.std()
    assert float(found.means()[3, 0, 0]) == pytest.approx(float(expected), abs=1e-2)
    singles = grouped(7 + noise, torch.arange(4000), 4000)  # an own group for each: overfitted
    assert float(singles.explained()) < 0.02


@pytest.fixture(scope="module")
def why(atlas):
    return atlas.tables["why"]


def test_the_directions_of_an_atlas_separate_better_than_random_ones(atlas, why):
    assert list(why) == [f"{layer}.{head}" for layer, head in atlas.sites]

    def mean(name):
        return sum(each[name] for each in why.values()) / len(why)

    for each in why.values():
        shares = [direction["share"] for direction in each["directions"]]
        assert shares == sorted(shares, reverse=True) and sum(shares) < 1 + 1e-5
        for name in ("position_share", "token_share", "query_token_share", "constant_share"):
            assert all(0 <= direction[name] <= 1 for direction in each["directions"])
    assert mean("auroc_random") + 0.03 < mean("auroc") < mean("auroc_whole") + 0.01
    assert mean("auroc") > mean("auroc_plain")
    better = [each["auroc"] > each["auroc_random"] for each in why.values()]
    assert sum(better) > 0.9 * len(better)


def test_atlas_show_prints_the_directions_of_a_head(atlas, why, tmp_path, capsys):
    import json

    from saccade.cli.main import main

    atlas.save(tmp_path / "a")
    assert main(["atlas", "show", "3.2", "--atlas", str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = (at for at, line in enumerate(lines) if line.startswith("why "))
    assert f"{why['3.2']['auroc']:.2f}" in lines[start]
    for each, line in zip(why["3.2"]["directions"], lines[start + 1 : start + 5], strict=True):
        assert each["name"] in line and repr(each["key_tokens"][0]["text"]) in line
    assert main(["atlas", "show", "3.2", "--atlas", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"] == why["3.2"]


def test_the_whole_score_separates_as_the_weights_of_hugging_face_do(stories, atlas, why):
    """The order of scores is that of weights, so that the number needs no queries and keys."""
    windows = atlas.windows[held_out(atlas.windows)]
    assert why["1.3"]["windows"] == len(windows) > 1
    eager = stories.hf.__class__.from_pretrained(stories.name, attn_implementation="eager")
    with torch.no_grad():
        attentions = eager(windows, output_attentions=True).attentions
    for layer, head in ((1, 3), (4, 0)):
        won = mass = 0.0
        for window in attentions[layer][:, head]:
            for query in range(7, windows.shape[1], 8):
                row = window[query, 1 : query + 1].double()
                higher = (row[:, None] > row).double() + 0.5 * (row[:, None] == row).double()
                pairs = row[:, None] * (1 - row)
                won += float((higher * pairs).sum() / pairs.sum() * row.sum())
                mass += float(row.sum())
        assert why[f"{layer}.{head}"]["auroc_whole"] == pytest.approx(won / mass, abs=2e-3)


def test_sums_leave_out_the_held_out_windows_and_merge_with_their_directions(
    stories, texts, config, atlas, why
):
    from dataclasses import replace

    half = replace(config, tokens=config.tokens // 2, roles="none")
    parts = [build_atlas(stories, text, half) for text in texts]
    merged = merge_atlases(parts)
    assert "why" not in merged.tables
    for name in (ATTENDED, UNATTENDED, MASS):
        assert torch.equal(merged.sums[name], atlas.sums[name]), name
    again = with_directions(stories, merged).tables["why"]
    for name, each in again.items():
        assert [d["name"] for d in each["directions"]] == [
            d["name"] for d in why[name]["directions"]
        ]
        assert each["auroc"] == pytest.approx(why[name]["auroc"], abs=1e-4)
    kept = (~held_out(atlas.windows)).sum() * (atlas.windows.shape[1] - 1)
    assert (atlas.sums[MASS].double() / UNIT <= float(kept)).all()


def test_a_part_without_these_sums_leaves_them_out_of_the_whole(stories, texts, config):
    from dataclasses import replace

    half = replace(config, tokens=300, roles="none")
    first, second = (build_atlas(stories, text, half, heads=[(1, None)]) for text in texts)
    older = replace(first, sums={k: v for k, v in first.sums.items() if k != ATTENDED})
    merged = with_directions(stories, merge_atlases([older, second]))
    assert ATTENDED not in merged.sums and MASS in merged.sums
    assert "no sums of queries and keys" in merged.tables["left_out"]["why"]


def planted(stories, asking, answering):
    """Head 0 of layer 0: queries of one token look for another one, in the slowest plane."""
    hf = copy.deepcopy(stories.hf)
    block = hf.model.layers[0]
    with torch.no_grad():
        stream = hf.get_input_embeddings().weight
        normed = block.input_layernorm(stream)
        inverse = torch.linalg.pinv(normed, rtol=1e-2)  # [d_model, token]
        for part, token in ((block.self_attn.q_proj, asking), (block.self_attn.k_proj, answering)):
            part.weight[:8] = 0
            reads = inverse[:, token]
            part.weight[3] = 8 * reads / (normed @ reads)[token]
    return wrap_model(hf, stories.tokenizer, name="planted")


def test_a_planted_head_is_named_by_its_tokens(stories, texts):
    (asking,), (answering,) = (
        stories.tokenizer(text, add_special_tokens=False).input_ids for text in ("was", "the")
    )
    model = planted(stories, asking, answering)
    config = AtlasConfig(tokens=2400, window=48, every=48, roles="none")
    atlas = build_atlas(model, texts, config, heads=[(0, 0)])
    found = atlas.tables["why"]["0.0"]
    first = found["directions"][0]
    assert first["query_tokens"][0]["text"] == stories.tokens([asking])[0]
    assert first["key_tokens"][0]["text"] == stories.tokens([answering])[0]
    assert first["share"] > 0.9
    assert first["token_share"] > 0.9 > first["position_share"] + 0.5
    assert found["auroc"] == pytest.approx(found["auroc_whole"], abs=0.02)
    names = [repr(text) for text in stories.tokens([asking, answering])]
    assert first["name"].startswith(names[0]) and f"-> {names[1]}" in first["name"]


def test_a_model_without_single_queries_leaves_directions_out_with_the_reason(stories, texts):
    hf = copy.deepcopy(stories.hf)
    attention = hf.model.layers[1].self_attn
    attention.q_proj = nn.Sequential(attention.q_proj, nn.Tanh())
    model = wrap_model(hf, stories.tokenizer, name="tanh")
    config = AtlasConfig(tokens=300, window=48, every=48, roles="none")
    atlas = build_atlas(model, texts[0], config)
    assert "why" not in atlas.tables and ATTENDED not in atlas.sums
    assert "through a Tanh" in atlas.tables["left_out"]["why"]


def test_a_short_text_has_too_few_windows_to_name_directions(stories, texts):
    config = AtlasConfig(tokens=96, window=48, every=48, roles="none")
    atlas = build_atlas(stories, texts[0], config, heads=[(1, 0)])
    assert int(held_out(atlas.windows).sum()) < 2
    assert "of 2 windows are left out of the sums" in atlas.tables["left_out"]["why"]
