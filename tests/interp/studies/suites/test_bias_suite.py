"""The suite of bias: correlations, leans and costs against slow forms, and a whole run."""

from __future__ import annotations

import json

import pytest
import torch

from saccade.errors import TaskError
from saccade.interp.effects.replacement import Replacement
from saccade.interp.studies.bias.silence_cost import (
    FEMALE,
    MALE,
    TEMPLATES,
    preference_for_right,
    silencing_cost,
    token_loss,
)
from saccade.interp.studies.suites import bias_suite, professions
from saccade.interp.studies.suites.bias_suite import BiasSuite
from saccade.interp.studies.suites.professions import (
    correlation,
    halves,
    leans_of,
    read_professions,
    spearman,
)
from saccade.interp.studies.suites.suite import SuiteConfig
from saccade.interp.studies.suites.suites import evaluate_suite

LINES = """\
1 [The farmer] saw the nurse because [he] was sad.
2 The farmer saw [the nurse] because [she] had a cake.
3 [The cook] ran to the guard because [his] cat was big.
4 The cook ran to [the guard] because [her] dog was lost and sad.
"""
ITEMS = [
    {
        "target": who,
        "context": f"The {who} was BLANK.",
        "stereotype": f"The {who} was sad.",
        "anti-stereotype": f"The {who} was big.",
        "unrelated": f"The {who} was boat.",
    }
    for who in ("girl", "boy", "cook")
]


def test_spearman_is_scipys_with_ties():
    spearmanr = pytest.importorskip("scipy.stats").spearmanr

    chance = torch.Generator().manual_seed(0)
    a, b = (torch.randint(4, (11,), generator=chance).double() for _ in range(2))
    assert float(spearman(a, b)) == pytest.approx(float(spearmanr(a, b).statistic))


def test_a_planted_correlation_is_found_and_its_interval_is_narrow():
    ratings = torch.arange(40).double()
    found = correlation(torch.stack([ratings, ratings.exp()]), ratings, seed=0)
    assert found.value == pytest.approx(1) and found.low > 0.99
    valley = (ratings - ratings.mean()).square()[None]  # falls, then rises as far
    found = correlation(valley, ratings, seed=0)
    assert found.value == pytest.approx(0) and found.low < 0 < found.high


def test_halves_share_nothing():
    split = halves(21, seed=3)
    assert sorted([*split.train.tolist(), *split.test.tolist()]) == list(range(21))


def test_a_lean_is_what_goes_when_the_head_is_set_to_its_mean_by_a_plain_hook(stories):
    words = ["cook", "teacher"]
    found = leans_of(stories, words)
    mean = Replacement.usual(stories).heads
    she, he = (int(stories.encode(f"a {word}")[0, -1]) for word in ("she", "he"))
    layer, head = 3, 5
    at = stories.layer(layer)

    def score(text: str, changed: bool) -> float:
        def ablate(_, args):
            z = args[0].clone()
            if changed:
                z[:, -1, head * at.d_head : (head + 1) * at.d_head] = mean[layer][head]
            return (z, *args[1:])

        with at.projection.register_forward_pre_hook(ablate):
            logits = stories.hf(stories.encode(text)).logits[0, -1]
        return float(logits[she] - logits[he])

    site = sum(each.n_heads for each in stories.layers if each.index < layer) + head
    for row, word in enumerate(words):
        texts = [each.format(word) for each in professions.TEMPLATES]
        whole = sum(score(text, False) for text in texts) / len(texts)
        left = sum(score(text, True) for text in texts) / len(texts)
        assert float(found.own[row]) == pytest.approx(whole, abs=1e-3)
        assert float(found.heads[site, row]) == pytest.approx(whole - left, abs=1e-3)


def test_preferences_and_losses_are_those_of_plain_runs(stories):
    found = preference_for_right(stories)
    she, he = (int(stories.encode(f"a {word}")[0, -1]) for word in ("she", "he"))
    for row, sign in ((0, 1), (len(FEMALE), -1)):
        logits = stories.hf(stories.encode(TEMPLATES[1].format([*FEMALE, *MALE][row]))).logits[
            0, -1
        ]
        expected = sign * float(logits[she] - logits[he])
        assert float(found[row, 1]) == pytest.approx(expected, abs=1e-3)
    ids = torch.cat([stories.encode("Once upon a time, there was a cat.")] * 2)
    expected = float(stories.hf(ids, labels=ids).loss)
    assert token_loss(stories, ids).tolist() == pytest.approx([expected] * 2, rel=1e-4)


def test_silencing_nothing_costs_nothing_and_silencing_all_costs_a_lot(stories):
    text = stories.encode("Once upon a time, there was a little girl named Lily.").expand(3, -1)
    zero = Replacement.zero(stories)
    heads = [(at.index, head) for at in stories.layers for head in range(at.n_heads)]
    cost = silencing_cost(stories, heads, replacement=zero, text=text)
    assert cost.perplexity_rise.mean > 1
    # Without heads the model sees the last token alone, the same for both words of a pair.
    assert cost.right_ablated == pytest.approx(0.5, abs=0.05)
    assert "perplexity" in cost.to_line()
    one = silencing_cost(stories, heads[:1], replacement=zero, text=text)
    assert abs(one.perplexity_rise.mean) < cost.perplexity_rise.mean


def write_data(folder):
    (folder / "winobias").mkdir()
    for split in ("dev", "test"):
        path = folder / "winobias" / f"pro_stereotyped_type1.txt.{split}"
        path.write_text(LINES, encoding="utf-8")
    (folder / "stereoset").mkdir()
    (folder / "professions").mkdir()
    lines = [json.dumps({**item, "bias_type": "gender"}) for item in ITEMS * 3]
    (folder / "stereoset" / "stereoset.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rated = [
        [word, 0.0, rating / 10]
        for rating, word in enumerate(
            ["cook", "maid", "king_s_cook", "farmer", "nurse", "guard", "teacher", "writer"] * 2, -8
        )
    ]
    path = folder / "professions" / "professions.json"
    path.write_text(json.dumps([*rated, ["actress", -1.0, 0.0]]), encoding="utf-8")


def test_the_suite_runs_on_data_of_its_form(stories, tmp_path, monkeypatch):
    write_data(tmp_path)
    monkeypatch.setattr(bias_suite, "FEWEST", 1)
    found = evaluate_suite(stories, "bias", SuiteConfig(), data=tmp_path)
    data = {row.data for row in found.rows}
    assert {"stereoset overall", "professions"} <= data
    assert any("1 professions are gendered by definition" in note for note in found.notes)
    assert all(row.low <= row.high for row in found.rows if row.low == row.low)
    if "winobias test" not in found.left_out and "winobias dev" not in found.left_out:
        assert found.value("winobias test", "all heads, dev against test", "Spearman") > 0.99


def test_items_of_ones_own_are_scored_as_sentences(stories, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, ITEMS * 4)), encoding="utf-8")
    found = evaluate_suite(stories, path)
    assert {row.metric for row in found.rows} == {"LM", "SS", "ICAT"}


def test_missing_data_and_broken_ratings_are_told(tmp_path, monkeypatch):
    monkeypatch.delenv("SACCADE_DATA", raising=False)
    with pytest.raises(TaskError, match="needs the data set winobias, which is not there"):
        BiasSuite().find(tmp_path)
    (tmp_path / "winobias").mkdir()
    with pytest.raises(TaskError, match="needs the data set stereoset, which is not beside"):
        BiasSuite().find(tmp_path)
    path = tmp_path / "professions.json"
    path.write_text('[["nurse", 0, -0.9], ["cook"]]', encoding="utf-8")
    with pytest.raises(TaskError, match="item 2 is no profession"):
        read_professions(path)
