"""Biased heads: masses against plain runs of the model, intervals against loops, ablation."""

import json

import pytest
import torch

from saccade.errors import UsageError
from saccade.interp.heads.prompt_batches import encode_prompts
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.lenses.residual_lenses import baseline_lenses
from saccade.interp.readings.reader import read
from saccade.interp.studies.bias.bias_words import PromptPairs, split_pairs, tokens_of
from saccade.interp.studies.bias.measure import BiasConfig, ask, find_bias, lens_mass, model_mass
from saccade.interp.studies.bias.report import intervals

PAIRS = split_pairs(
    [
        "{Lily|Tom} went to the park and",
        "The {girl|boy} saw a dog, and",
        "One day the {mom|dad} said that",
        "{Lily|Ben} was sad because",
        "The {queen|king} was happy. Then",
    ]
)
# "butterfly" and "him" take several of the little model's tokens.
SHE, HE = ["she", "her", "butterfly"], ["he", "him"]


@pytest.fixture(scope="module")
def lenses(chance_lenses):
    return chance_lenses(size=1.0)


@pytest.fixture(scope="module")
def asked(stories):
    words = tokens_of(stories, SHE)
    return ask(stories, encode_prompts(stories, PAIRS.first), words)


def chance_of(stories, prompt: str, word: str) -> float:
    """The product of next-token probabilities from plain runs of the Hugging Face model."""
    (ids,) = tokens_of(stories, [word, "dog"]).ids[:1]
    text, product = stories.encode(prompt), 1.0
    for token in ids:
        product *= float(stories.hf(text).logits[0, -1].softmax(-1)[token])
        text = torch.cat([text, torch.tensor([[token]])], 1)
    return product


def test_the_models_mass_on_a_word_is_the_product_over_its_tokens(stories, asked):
    assert asked.words.in_pieces == ("butterfly",)
    found = model_mass(stories, asked)
    for row, prompt in enumerate(PAIRS.first):
        for column, word in enumerate(SHE):
            expected = chance_of(stories, prompt, word)
            assert float(found[row, column]) == pytest.approx(expected, rel=1e-4)


def test_a_lens_has_the_first_token_and_the_model_the_rest(stories, lenses, asked):
    """Against readings, one prompt and one head at a time."""
    found = lens_mass(lenses, asked, torch.eye(3, dtype=torch.double))
    own = model_mass(stories, asked)
    for row, prompt in enumerate(PAIRS.first[:2]):
        reading = read(stories, prompt, lenses=lenses, effects=False, top=stories.d_vocab)
        first = stories.hf(stories.encode(prompt)).logits[0, -1].softmax(-1)
        for site, (layer, head) in enumerate(lenses.sites):
            told = {word.id: word.value for word in reading.at(layer, head).lens.predicts}
            for column, ids in enumerate(asked.words.ids):
                rest = float(own[row, column]) / float(first[ids[0]])
                expected = told[ids[0]] * rest
                assert float(found[row, site, column]) == pytest.approx(expected, rel=1e-3)


def test_words_are_added_up_by_group(lenses, asked):
    every = lens_mass(lenses, asked, torch.eye(3, dtype=torch.double))
    groups = torch.tensor([[1, 0], [0, 1], [0, 1]], dtype=torch.double)
    torch.testing.assert_close(lens_mass(lenses, asked, groups), every @ groups)


def test_the_interval_is_that_of_drawing_pairs_one_after_the_other():
    values = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)).double()
    found = intervals(values, draws=101, seed=5)
    chance = torch.Generator().manual_seed(5)
    picks = torch.randint(7, (101, 7), generator=chance)
    for site in range(3):
        means = torch.stack([values[pick, site].mean() for pick in picks])
        low, high = means.quantile(torch.tensor([0.025, 0.975]).double())
        expected = (float(values[:, site].mean()), float(low), float(high))
        assert found.at(site) == pytest.approx(expected)


def test_every_metric_agrees_with_its_definition(stories, lenses):
    found = find_bias(lenses, SHE, PAIRS, against=HE, config=BiasConfig(ablate=2, draws=100))
    sides = []
    for prompts in PAIRS:
        encoded = encode_prompts(stories, prompts)
        plus, minus = (ask(stories, encoded, tokens_of(stories, words)) for words in (SHE, HE))
        lens = [
            lens_mass(lenses, each, torch.ones(len(each.words.words), 1)) for each in (plus, minus)
        ]
        own = model_mass(stories, plus).sum(1) - model_mass(stories, minus).sum(1)
        sides.append(((lens[0] - lens[1])[..., 0], own))
    (first, own_first), (second, own_second) = sides
    torch.testing.assert_close(found.first, first.mean(0))
    torch.testing.assert_close(found.difference.mean, (first - second).mean(0))
    assert found.own.mean == pytest.approx(float((own_first - own_second).mean()))
    best = found.ranked[0]
    assert found.difference.at(best).clear == max(
        found.difference.at(site).clear for site in range(len(lenses.sites))
    )


def test_what_a_head_carries_is_what_goes_when_it_is_zeroed_by_a_plain_hook(stories, lenses):
    config = BiasConfig(ablate=1, by="zero", draws=100)
    found = find_bias(lenses, ["she", "her"], PAIRS, config=config)
    ((layer, head), carried), at = *found.carried.items(), None
    at = stories.layer(layer)

    def ablate(_, args):
        z = args[0].clone()
        z[..., head * at.d_head : (head + 1) * at.d_head] = 0
        return (z, *args[1:])

    def difference() -> float:
        ids = [each[0] for each in tokens_of(stories, ["she", "her"]).ids]
        chances = [
            [
                float(stories.hf(stories.encode(p)).logits[0, -1].softmax(-1)[ids].sum())
                for p in side
            ]
            for side in PAIRS
        ]
        first, second = torch.tensor(chances)
        return float((first - second).mean())

    whole = difference()
    with at.projection.register_forward_pre_hook(ablate):
        without = difference()
    assert found.own.mean == pytest.approx(whole, rel=1e-3)
    assert carried.mean == pytest.approx(whole - without, rel=1e-2, abs=1e-6)


def test_heads_that_change_the_difference_are_silenced_together(stories, lenses):
    found = find_bias(lenses, SHE, PAIRS, against=HE, config=BiasConfig(ablate=6, draws=100))
    changing = [site for site, each in found.carried.items() if each.clear > 0]
    if not changing:
        assert found.cost is None and found.together is None
        return
    assert found.cost is not None and found.together is not None
    assert list(found.cost.heads) == changing
    if len(changing) == 1:
        assert found.together.mean == pytest.approx(found.carried[changing[0]].mean)
    told = found.to_dict()["silencing_cost"]
    assert told["perplexity"] > 1 and told["definitional_preference"]["low"] < 1e9
    assert "queen" in found._caption() and "perplexity" in found._caption()
    none = find_bias(lenses, SHE, PAIRS, against=HE, config=BiasConfig(ablate=0, draws=100))
    assert none.cost is None and "queen" not in none._caption()


def test_prompts_without_partners_are_compared_with_the_baseline_lens(stories, lenses):
    alone = PromptPairs(PAIRS.first, None)
    found = find_bias(lenses, ["she", "her"], alone, config=BiasConfig(ablate=0, draws=100))
    ids = [each[0] for each in tokens_of(stories, ["she", "her"]).ids]
    usual = float(lenses.baseline.exp()[ids].sum())
    torch.testing.assert_close(found.second, torch.full_like(found.second, usual))
    assert "baseline" in {column.header for column in found.to_table().columns}
    assert found.to_dict()["n_prompts"] == len(PAIRS.first)


def test_a_head_that_was_made_biased_comes_first(stories, lenses):
    """Its lens reads the head as "she" where a prompt is the first of its pair."""
    from saccade.interp.heads.capture import capture

    layer, head = stories.layers[1].index, 2
    pairs = PromptPairs(PAIRS.first[:4], PAIRS.second[:4])
    first, second = (
        torch.stack([capture(stories, ids[None]).z[layer][0, -1, head] for ids in encoded])
        for encoded in (encode_prompts(stories, side) for side in pairs)
    )
    # A direction in which the prompts of a pair are 1 apart, and all pairs have the same middle.
    middles = (first + second) / 2
    apart = torch.cat([first - second, middles[1:] - middles[0]])
    wanted = torch.tensor([1.0] * 4 + [0.0] * 3)[:, None]
    direction = torch.linalg.lstsq(apart, wanted).solution[:, 0]
    word = tokens_of(stories, ["she", "her"]).ids[0][0]
    weight = stories.unembedding.weight.float()
    row = torch.linalg.pinv(weight)[:, word]  # raises "she", and of all else as little as can be
    row *= 20 / (weight[word] @ row)
    made = {each: HeadLens.start(stories, each) for each in lenses.by_layer}
    made[layer].weight.data[head] = torch.outer(direction, row)
    made[layer].bias.data[head] = -float(middles[0] @ direction) * row
    biased = Lenses(lenses.model, made, lenses.baseline, lenses.provenance)
    found = find_bias(biased, ["she", "her"], pairs, config=BiasConfig(ablate=0, draws=100))
    assert found.sites[found.ranked[0]] == (layer, head)
    assert found.difference.at(found.ranked[0]).low > 0.1


def test_the_same_seed_gives_the_same_and_json_is_plain(lenses):
    config = BiasConfig(ablate=1, draws=100)
    one, again = (find_bias(lenses, SHE, PAIRS, against=HE, config=config) for _ in range(2))
    assert one.to_json() == again.to_json()
    told = json.loads(one.to_json())
    assert len(told["heads"]) == len(lenses.sites)
    assert told["heads"][0]["carries"] is not None and told["heads"][1]["carries"] is None
    assert told["words_in_pieces"] == ["butterfly", "him"]


def test_one_prompt_or_lenses_of_the_stream_are_refused(stories, lenses):
    with pytest.raises(UsageError, match="at least 2 pairs of prompts, got 1"):
        find_bias(lenses, SHE, split_pairs(["The {girl|boy} said"]))
    with pytest.raises(UsageError, match="residual stream"):
        find_bias(baseline_lenses(stories, "logit"), SHE, PAIRS)
