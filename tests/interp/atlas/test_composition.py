"""Composition is that of the whole matrices; its baseline that of random rotations."""

from __future__ import annotations

import copy

import pytest
import torch
from families import tiny
from torch.testing import assert_close

from saccade.errors import ModelError, UsageError
from saccade.interp.atlas.composition import (
    KINDS,
    Composition,
    head_composition,
    measured_paths,
)
from saccade.interp.effects.paths import path_effects
from saccade.interp.effects.positions import HeadAt
from saccade.interp.effects.replacement import Replacement
from saccade.interp.heads.head_weights import head_weights
from saccade.interp.heads.model import wrap_model


def by_whole_matrices(weights, kind, source, reader):
    """The definition, with matrices of d_model x d_model."""

    def parts(site):
        layer, head = weights[site[0]], site[1]
        of = [layer.of_heads(part)[head] for part in (layer.query, layer.key, layer.value)]
        return (*of, layer.output[head])

    _, _, value, output = parts(source)
    query, key, later_value, later_output = parts(reader)
    reads = {
        "query": query @ key.T,
        "key": key @ query.T,
        "value": later_value @ later_output,
    }[kind]
    writes = value @ output
    return float((writes @ reads).norm() / writes.norm() / reads.norm())


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "olmo2", "falcon-grouped", "qwen3"])
def test_composition_is_that_of_the_whole_matrices(opened, family):
    model = opened(family)
    found, weights = head_composition(model), head_weights(model)
    n = 0
    for a, source in enumerate(found.sites):
        for b, reader in enumerate(found.sites):
            for k, kind in enumerate(KINDS):
                score = float(found.scores[k, a, b])
                if source[0] >= reader[0]:
                    assert score == 0
                    continue
                assert score == pytest.approx(
                    by_whole_matrices(weights, kind, source, reader), rel=1e-3
                )
                n += 1
    assert n > 50


def test_the_baseline_is_the_mean_square_over_random_rotations_whatever_the_spectra():
    generator = torch.Generator().manual_seed(0)
    d_model, d_head = 23, 5
    spectra = [torch.tensor([9.0, 3.0, 1.0, 0.3, 0.1]), torch.tensor([5.0, 5.0, 0.2, 0.1, 0.0])]
    b, c = (
        s[:, None] * torch.linalg.qr(torch.randn(d_model, d_head, generator=generator)).Q.T
        for s in spectra
    )
    squares = []
    for _ in range(4000):
        q, r = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator))
        rotation = q * r.diagonal().sign()
        squares.append(float((b @ rotation @ c.T).norm() / b.norm() / c.norm()) ** 2)
    squares = torch.tensor(squares)
    error = float(squares.std()) / len(squares) ** 0.5
    assert abs(float(squares.mean()) - 1 / d_model) < 4 * error
    assert error < 0.05 / d_model


def test_random_heads_compose_as_the_baseline_says(opened):
    found = head_composition(opened("llama"))
    scores = found.scores[found.scores > 0]
    assert found.baseline == pytest.approx(48**-0.5)
    assert float(scores.square().mean().sqrt()) == pytest.approx(found.baseline, rel=0.15)


def planted(kind):
    """Head 4 of layer 2 reads, from one side, just what head 1 of layer 0 writes."""
    hf = copy.deepcopy(tiny("llama"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in hf.parameters():
            weight.add_(0.3 * weight.std() * torch.randn(weight.shape, generator=generator))
        wrote = hf.model.layers[0].self_attn.o_proj.weight[:, 10:20]  # [d_model, d_head]
        attention, norm = hf.model.layers[2].self_attn, hf.model.layers[2].input_layernorm
        reads = (wrote / norm.weight[:, None]).T
        # Head 4 has key and value head 1.
        rows, part = {
            "query": (slice(40, 50), attention.q_proj),
            "key": (slice(10, 20), attention.k_proj),
            "value": (slice(10, 20), attention.v_proj),
        }[kind]
        part.weight[rows] = reads
    return wrap_model(hf, None, name="planted")


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_made_to_read_another_composes_with_it_most(kind):
    found = head_composition(planted(kind))
    best = found.largest(3, head=(2, 4))[0]
    assert (best.source, best.reader, best.kind) == ((0, 1), (2, 4), kind)
    assert best.above == pytest.approx(best.score - found.baseline)
    assert found.strongest((0, 1), (2, 4)) == best


def test_some_heads_have_the_composition_that_they_have_among_all(opened):
    model = opened("gpt2")
    whole, some = head_composition(model), head_composition(model, [(0, 2), (2, 0), (2, 1)])
    at = [2, 6, 7]
    assert [whole.sites[i] for i in at] == list(some.sites)
    assert_close(some.scores, whole.scores[:, at][:, :, at])


def test_a_head_outside_of_the_composition_is_refused():
    found = Composition([(0, 1), (3, 2)], torch.zeros(3, 2, 2), 0.1)
    with pytest.raises(UsageError, match=r"no composition of head 1\.0: it is of 2 heads"):
        found.strongest((0, 1), (1, 0))
    assert found.largest() == []


def test_a_stream_that_blocks_norm_again_is_refused():
    hf = copy.deepcopy(tiny("opt"))
    for layer in hf.model.decoder.layers:
        layer.do_layer_norm_before = False
    hf.model.decoder.final_layer_norm = None
    model = wrap_model(hf, None, name="post-norm")
    assert not model.layers[0].reaches_stream
    with pytest.raises(ModelError):
        head_composition(model)


@pytest.fixture
def windows():
    return torch.randint(3, 101, (2, 13), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def values():
    def make(model):
        generator = torch.Generator().manual_seed(5)
        return Replacement(
            "mean",
            {
                at.index: torch.randn(at.n_heads, at.d_head, generator=generator)
                for at in model.layers
            },
        )

    return make


def test_measured_paths_are_the_mean_of_path_patching_for_the_largest_pairs_and_a_control(
    opened, windows, values
):
    model = opened("llama")
    composition, replacement = head_composition(model), values(model)
    places = [(0, 7), (1, 11)]
    found = measured_paths(
        model, composition, windows, places, replacement=replacement, n_pairs=5, seed=2
    )
    assert [pair.is_control for pair in found.pairs] == [False] * 5 + [True] * 5
    assert len({(pair.source, pair.reader) for pair in found.pairs}) == 10
    for pair in (found.pairs[0], found.pairs[-1]):
        kl = 0.0
        for window, position in places:
            through = HeadAt(*pair.reader, (position,))
            head = HeadAt(*pair.source)
            ids = windows[window : window + 1, : position + 1]
            measured = path_effects(model, ids, [head], through, replacement=replacement)
            kl += measured[head].kl / 2
        assert pair.kl == pytest.approx(kl, rel=1e-3)
        assert pair.score == composition.strongest(pair.source, pair.reader).score
    chosen = [pair.score for pair in found.pairs[:5]]
    assert min(chosen) >= max(pair.score for pair in found.pairs[5:])
    low, high = found.rank_correlation.low, found.rank_correlation.high
    assert -1 <= low <= found.rank_correlation.value <= high <= 1
    assert found.to_dict()["largest_kl"][0] == pytest.approx(
        sum(pair.kl for pair in found.pairs[:5]) / 5
    )


def test_no_position_to_measure_at_is_an_error(opened, windows, values):
    model = opened("llama")
    with pytest.raises(UsageError, match="no position"):
        measured_paths(model, head_composition(model), windows, [], replacement=values(model))
