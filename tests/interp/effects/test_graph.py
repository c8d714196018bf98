"""The flow of a prediction: all that a head gives is accounted for, pruned or not."""

import pytest
import torch

from saccade.interp.effects.graph import find_flow
from saccade.interp.effects.paths import PathGradients
from saccade.interp.effects.positions import HeadAt, position_effects
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import capture


@pytest.fixture(scope="module")
def ids(stories):
    return stories.encode("Once upon a time, Lily had a red ball. One day, Lily")


@pytest.fixture(scope="module")
def replacement(stories):
    from saccade.interp.effects.replacement import Replacement

    return Replacement.usual(stories)


@pytest.fixture(scope="module")
def target(stories, ids):
    first, second = stories.hf(ids).logits[0, -1].topk(2).indices.tolist()
    return Target(first, second)


@pytest.fixture(scope="module")
def flow(stories, ids, replacement, target):
    return find_flow(stories, ids, target, replacement=replacement)


def given(flow, *, source=None, to=None):
    return sum(e.value for e in flow.edges if source in (None, e.source) and to in (None, e.to))


def test_the_score_and_the_exact_effects_are_the_models(flow, stories, ids, replacement, target):
    logits = stories.hf(ids).logits[0, -1]
    assert flow.score == pytest.approx(float(target.score(logits)), abs=1e-4)
    heads = [HeadAt(n.layer, n.head, (n.position,)) for n in flow.nodes]
    exact = position_effects(stories, ids, heads, replacement=replacement, target=target)
    for node, head in zip(flow.nodes, heads, strict=True):
        assert node.exact == pytest.approx(exact[head].on_token, abs=1e-4)


def test_direct_later_heads_and_elsewhere_add_up_to_the_attribution(
    stories, ids, replacement, target
):
    flow = find_flow(stories, ids[:, :4], target, replacement=replacement, threshold=1e-3)
    paths = PathGradients.record(stories, ids[:, :4], target, replacement=replacement)
    assert len(flow.nodes) > 20
    for node in flow.nodes:
        assert node.attribution == pytest.approx(
            float(paths.attribution[node.layer][node.position, node.head])
        )
        later = sum(
            float(paths.through(other.layer, other.head, other.position)
                  [node.layer][node.position, node.head])
            for other in flow.nodes
            if other.layer > node.layer
        )  # fmt: skip
        drawn = given(flow, source=node.name) - (given(flow, source=node.name, to="prediction"))
        slack = 1e-3 * len(flow.nodes) * max(abs(n.direct) for n in flow.nodes)
        assert drawn == pytest.approx(later, abs=slack)
        assert node.direct + drawn + node.elsewhere == pytest.approx(node.attribution, abs=1e-4)


def test_tokens_give_all_that_a_head_gives(stories, ids, replacement, target):
    flow = find_flow(stories, ids, target, replacement=replacement, threshold=1e-4)
    for node in flow.nodes:
        tokens = sum(
            e.value for e in flow.edges if e.to == node.name and e.source.startswith("token@")
        )
        slack = 1e-4 * len(flow.tokens) * max(abs(n.direct) for n in flow.nodes)
        assert tokens == pytest.approx(node.attribution, abs=slack + 1e-5)


def test_a_token_gives_its_weight_times_its_value_above_the_replacement(
    flow, stories, ids, replacement, target
):
    """Values by hand: the value projection of the normed stream, as Llama defines it."""
    node = max(flow.nodes, key=lambda each: abs(each.attribution))
    at = stories.layer(node.layer)
    entered = {}
    hook = at.block.input_layernorm.register_forward_hook(
        lambda _, __, out: entered.update(normed=out)
    )
    with hook:
        run = capture(stories, ids, attention=[node.layer])
    values = at.attention.v_proj(entered["normed"])[0]
    group = node.head * values.shape[-1] // (at.n_heads * at.d_head)
    value = values.view(len(values), -1, at.d_head)[:, group]
    gradient = PathGradients.record(stories, ids, target, replacement=replacement).gradient
    along = (value - replacement.heads[node.layer][node.head]) @ gradient[node.layer][
        node.position, node.head
    ]
    weights = run.attention[node.layer][0, node.head, node.position]
    expected = weights * along
    edges = {int(e.source[6:]): e.value for e in flow.edges
             if e.to == node.name and e.source.startswith("token@")}  # fmt: skip
    assert edges
    for position, each in edges.items():
        assert each == pytest.approx(float(expected[position]), abs=1e-4)


def test_pruning_gives_the_graph_of_the_higher_threshold(flow):
    small = flow.pruned(0.3)
    assert 0 < len(small.nodes) < len(flow.nodes)
    assert 0 < small.kept < flow.kept <= 1
    largest = max(abs(e.value) for e in flow.edges if e.to == "prediction")
    assert all(abs(e.value) >= 0.3 * largest for e in small.edges)
    names = {n.name for n in small.nodes}
    for node in small.nodes:
        assert any(e.source == node.name and e.to in {*names, "prediction"} for e in small.edges)
    assert {e.source for e in small.edges if e.source[0] != "t"} <= names
    assert {e.to for e in small.edges} <= {*names, "prediction"}


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3])
def test_what_pruning_loses_goes_elsewhere(flow, threshold):
    for node in flow.pruned(threshold).nodes:
        later = given(flow.pruned(threshold), source=node.name) - given(
            flow.pruned(threshold), source=node.name, to="prediction"
        )
        assert node.direct + later + node.elsewhere == pytest.approx(node.attribution, abs=1e-4)


def test_the_graph_is_written_as_json_with_the_names_of_nodes(flow):
    import json

    found = json.loads(json.dumps(flow.to_dict()))
    assert {n["name"] for n in found["nodes"]} == {n.name for n in flow.nodes}
    assert found["agreement"] == pytest.approx(flow.agreement, abs=1e-5)
    assert len(found["tokens"]) == len(flow.tokens)


def test_every_family_has_a_graph(wrapped):
    """Where values cannot be seen, tokens get the share of their attention weight."""
    from saccade.interp.effects.replacement import Replacement

    for family in ("gpt2", "falcon-alibi", "gemma2", "bloom"):
        model = wrapped(family)
        ids = torch.randint(3, 101, (1, 7), generator=torch.Generator().manual_seed(1))
        zero = Replacement.zero(model)
        paths = PathGradients.record(model, ids, Target(7, 11), replacement=zero)
        from saccade.interp.effects.graph import _from_tokens

        heads = [HeadAt(1, 0, (6,)), HeadAt(0, 2, (3,))]
        found = _from_tokens(model, ids, paths, heads, zero)
        for head in heads:
            expected = float(paths.attribution[head.layer][head.positions[0], head.head])
            assert sum(found[head]) == pytest.approx(expected, abs=1e-4)
