"""Effects on WinoBias, against a plain eager model whose attention is exchanged by hand."""

from __future__ import annotations

import pytest
import torch

from saccade.errors import TaskError
from saccade.interp.studies.suites.winobias import (
    Odds,
    Pair,
    after_prefix,
    indirect_effects,
    pair_odds,
    pairs_of,
    read_pairs,
)

LINES = """\
1 [The farmer] saw the nurse because [he] was sad.
2 The farmer saw [the nurse] because [she] had a cake.
3 [The cook] ran to the guard because [his] cat was big.
4 The cook ran to [the guard] because [her] dog was lost and sad.
5 [The chief] saw the clerk and helped [him].
6 The chief saw [the clerk] and helped [her].
7 [The guard] was told by the maid that [she] was sad.
8 The guard was told by [the maid] that [she] was big.
"""


@pytest.fixture
def items(tmp_path):
    (tmp_path / "pro_stereotyped_type1.txt.dev").write_text(LINES, encoding="utf-8")
    return read_pairs(tmp_path, "dev")


@pytest.fixture(scope="module")
def eager(story_folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(story_folder, attn_implementation="eager")
    return model.eval().requires_grad_(False)


def test_two_sentences_in_a_row_are_a_pair_if_their_pronouns_are(items):
    assert [item["context"] for item in items] == [
        "The farmer saw the nurse because",
        "The cook ran to the guard because",
    ]
    assert (items[0]["of_female"], items[0]["of_male"]) == ("had a cake.", "was sad.")
    assert (items[1]["female"], items[1]["male"]) == ("her", "his")


def test_a_line_without_brackets_is_named_by_its_number(tmp_path):
    text = LINES.replace("[The cook] ran", "The cook ran").replace("[his]", "his")
    (tmp_path / "pro_stereotyped_type1.txt.dev").write_text(text, encoding="utf-8")
    with pytest.raises(TaskError, match="item 3 has nothing in brackets"):
        read_pairs(tmp_path, "dev")
    with pytest.raises(TaskError, match="cannot read"):
        read_pairs(tmp_path, "test")


def mean_log_p(hf, before, continuation) -> float:
    ids = torch.cat([before, continuation])[None]
    log_p = hf(ids).logits[0].log_softmax(-1)
    wanted = [float(log_p[len(before) - 1 + i, token]) for i, token in enumerate(continuation)]
    return sum(wanted) / len(wanted)


def log_odds(hf, before, pair: Pair) -> float:
    of_female, of_male = (mean_log_p(hf, before, each) for each in pair.continuations)
    return of_male - of_female


def test_odds_are_those_of_the_plain_model_token_by_token(stories, eager, items):
    pairs = pairs_of(stories, items)
    odds = pair_odds(stories, pairs)
    for at, pair in enumerate(pairs):
        for found, text in ((odds.female, pair.female), (odds.male, pair.male)):
            assert float(found[at].log()) == pytest.approx(log_odds(eager, text, pair), abs=1e-4)


def test_the_indirect_effect_is_that_of_attention_exchanged_in_an_eager_model(
    stories, eager, items
):
    pair = pairs_of(stories, items)[1]
    found = indirect_effects(stories, [pair])[0]
    n, base = len(pair.female), log_odds(eager, pair.female, pair)
    other = eager(pair.male[None], output_attentions=True).attentions
    for layer, head in ((0, 3), (2, 0), (4, 7)):
        attention = eager.model.layers[layer].self_attn
        values = {}

        def keep(_, __, output, values=values):
            values["v"] = output

        def exchange(_, args, values=values, layer=layer, head=head):
            z = args[0].clone()
            d = z.shape[-1] // 8
            group = values["v"][0].unflatten(-1, (4, -1))[:n, head // 2]  # 4 key heads for 8 heads
            z[0, n - 1, head * d : (head + 1) * d] = other[layer][0, head, -1, :n] @ group
            return (z,)

        with (
            attention.v_proj.register_forward_hook(keep),
            attention.o_proj.register_forward_pre_hook(exchange),
        ):
            changed = log_odds(eager, pair.female, pair)
        expected = torch.tensor(changed - base).expm1()
        assert float(found[8 * layer + head]) == pytest.approx(float(expected), rel=2e-2, abs=2e-5)


def test_a_pronoun_exchanged_for_itself_has_no_effect(stories, items):
    pair = pairs_of(stories, items)[0]
    effects = indirect_effects(stories, [pair._replace(male=pair.female)])
    torch.testing.assert_close(effects, torch.zeros_like(effects), atol=1e-4, rtol=0)


def test_rows_after_a_shared_prefix_are_whole_texts(stories):
    ids = stories.encode("Once upon a time, there was a little girl")[0]
    rows = torch.stack([ids[-3:], ids[-3:].flip(0)])
    whole = torch.cat([ids[:-3].expand(2, -1), rows], 1)
    with after_prefix(stories, ids[:-3]):
        found = stories.hf.model(rows).last_hidden_state
    expected = stories.hf.model(whole).last_hidden_state[:, -3:]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_pairs_below_the_lowest_quarter_of_stereotyped_ones_are_left_out():
    ratio = torch.tensor([0.5, 1.1, 2.0, 3.0, 4.0, 5.0])
    odds = Odds(torch.ones(6), ratio)
    assert odds.aligned == [3, 4, 5]  # a quarter of those above 1 are at most 2
    assert Odds(torch.ones(2), torch.tensor([0.5, 0.9])).aligned == []
    torch.testing.assert_close(odds.total, ratio - 1)
