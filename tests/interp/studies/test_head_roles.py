"""Roles of heads, on patterns set by hand, by loops, and in a model built to have known roles."""

from __future__ import annotations

import json

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import ModelError, UsageError
from saccade.interp.studies.roles.names import name_texts
from saccade.interp.studies.roles.ov_circuits import copy_scores
from saccade.interp.studies.roles.patterns import (
    duplicate_token_score,
    induction_score,
    previous_token_score,
    repeated_blocks,
)
from saccade.interp.studies.roles.roles import checked_roles, find_roles

BLOCK, REPEATS, START = 5, 3, 1
N = START + BLOCK * REPEATS


@pytest.fixture
def tokens():
    block = torch.randperm(50, generator=torch.Generator().manual_seed(0))[:BLOCK]
    return [99, *block.repeat(REPEATS).tolist()]


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, N, N, generator=generator)
    return scores.masked_fill(torch.ones(N, N).triu(1).bool(), -1e9).softmax(-1)


def by_loops(weights, tokens, is_wanted):
    """Mean over tokens that were said before of the weight on what is wanted, by definition."""
    batch, heads = weights.shape[:2]
    found = torch.zeros(heads)
    said_before = [q for q in range(len(tokens)) if tokens[q] in tokens[:q]]
    for head in range(heads):
        for row in range(batch):
            for query in said_before:
                for key in range(query + 1):
                    if is_wanted(query, key):
                        found[head] += weights[row, head, query, key]
    return found / (batch * len(said_before))


def test_duplicate_and_induction_scores_are_those_of_loops_over_the_tokens(weights, tokens):
    def same(query, key):
        return key < query and tokens[key] == tokens[query]

    def after_same(query, key):
        return key > 0 and key - 1 < query and tokens[key - 1] == tokens[query]

    shape = {"block": BLOCK, "start": START}
    assert_close(duplicate_token_score(weights, **shape), by_loops(weights, tokens, same))
    assert_close(induction_score(weights, **shape), by_loops(weights, tokens, after_same))


def test_the_previous_token_score_is_that_of_a_loop(weights):
    expected = sum(weights[:, :, q, q - 1].mean(0) for q in range(1, N)) / (N - 1)
    assert_close(previous_token_score(weights), expected)


def test_a_perfect_pattern_has_a_score_of_one():
    perfect = torch.zeros(1, 3, N, N)
    for query in range(N):
        perfect[:, 0, query, max(0, query - 1)] = 1
        perfect[:, 1, query, query - BLOCK if query > BLOCK else query] = 1
        perfect[:, 2, query, query - BLOCK + 1 if query > BLOCK else query] = 1
    shape = {"block": BLOCK, "start": START}
    assert_close(previous_token_score(perfect)[0], torch.tensor(1.0))
    assert_close(duplicate_token_score(perfect, **shape), torch.tensor([0.0, 1.0, 0.0]))
    assert_close(induction_score(perfect, **shape), torch.tensor([0.0, 0.0, 1.0]))


VOCAB, CONTEXT = 211, 130


def one_hot_map(rows, columns, start_row, start_column, size, gain=1.0):
    found = torch.zeros(rows, columns)
    for i in range(size):
        found[start_row + i, start_column + i] = gain
    return found


@pytest.fixture(scope="module")
def built():
    """GPT-2 whose stream holds, side by side, the token, the place, and the token before.

    Head 0.0 looks at the place before and writes its token into the third part; head 1.0 looks for
    the present token in the third part, and writes the token it finds there: an induction head.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from saccade.interp.heads.model import wrap_model

    width = 2 * VOCAB + CONTEXT
    d_head = width  # one head a layer
    config = AutoConfig.for_model(
        "gpt2", vocab_size=VOCAB, n_embd=width, n_head=1, n_layer=2, n_positions=CONTEXT, n_inner=1
    )
    config.tie_word_embeddings = False
    model = AutoModelForCausalLM.from_config(config)
    token, place, before = 0, VOCAB, VOCAB + CONTEXT
    sharp = 30.0 * d_head**0.5 / (width / 2)  # norms make every one-hot about sqrt(width / 2) large
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_gain = "ln_" in name and name.endswith("weight")
            weight.fill_(1.0 if is_gain else 0.0)
        body = model.transformer
        body.wte.weight[:, token : token + VOCAB] = torch.eye(VOCAB)
        body.wpe.weight[:, place : place + CONTEXT] = torch.eye(CONTEXT)
        model.lm_head.weight[:, token : token + VOCAB] = torch.eye(VOCAB)
        first, second = body.h[0].attn, body.h[1].attn
        # Conv1D: rows are what is read. The key of place p matches the query of place p + 1.
        first.c_attn.weight[place + 1 : place + CONTEXT, 0 : CONTEXT - 1] = sharp * torch.eye(
            CONTEXT - 1
        )
        first.c_attn.weight[place : place + CONTEXT, d_head : d_head + CONTEXT] = torch.eye(CONTEXT)
        first.c_attn.weight[:, 2 * d_head :] = one_hot_map(width, d_head, token, before, VOCAB)
        first.c_proj.weight[:] = torch.eye(width) * 0.1
        second.c_attn.weight[:, :d_head] = one_hot_map(width, d_head, token, 0, VOCAB, 9 * sharp)
        second.c_attn.weight[:, d_head : 2 * d_head] = one_hot_map(width, d_head, before, 0, VOCAB)
        second.c_attn.weight[:, 2 * d_head :] = one_hot_map(width, d_head, token, token, VOCAB)
        second.c_proj.weight[:] = torch.eye(width)
    return wrap_model(model.eval(), None, name="built")


def test_a_model_built_as_an_induction_circuit_has_its_roles(built):
    roles = find_roles(built, roles=("induction", "previous", "duplicate"))
    scores = {role: [float(rows[0][0]), float(rows[1][0])] for role, rows in roles.scores.items()}
    assert scores["previous"][0] > 0.95 and scores["previous"][1] < 0.1
    assert scores["induction"][1] > 0.95 and scores["induction"][0] < 0.1
    assert max(scores["duplicate"]) < 0.1
    assert roles.ranked("induction", 1)[0][:2] == (1, 0)


def test_the_built_induction_head_copies_and_the_other_does_not(built):
    ids = 20 + torch.randperm(100, generator=torch.Generator().manual_seed(2))[:24].view(3, 8)
    found = copy_scores(built, ids, torch.tensor([2, 5, 7]))
    assert found[1].tolist() == [1.0]
    assert found[0].tolist() == [0.0]


def test_repeated_blocks_repeat_and_begin_as_the_tokenizer_begins(stories):
    text = repeated_blocks(stories, rows=3, seed=1, block=7, repeats=3)
    assert text.start == 1 and (text.ids[:, 0] == stories.encode("a")[0, 0]).all()
    blocks = text.ids[:, 1:].view(3, 3, 7)
    assert (blocks == blocks[:, :1]).all()
    assert all(len(set(block[0].tolist())) == 7 for block in blocks)
    again = repeated_blocks(stories, rows=3, seed=1, block=7, repeats=3)
    other = repeated_blocks(stories, rows=3, seed=2, block=7, repeats=3)
    assert torch.equal(again.ids, text.ids) and not torch.equal(other.ids, text.ids)


@pytest.fixture(scope="module")
def reader_of_tokens():
    """A random model for which every token is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    from saccade.interp.heads.model import wrap_model
    from saccade.interp.studies.roles.names import NAMES, PLACES, SHAPES, THINGS

    tokens = {token for shape in SHAPES for token in shape.split() if "{" not in token}
    tokens |= {*NAMES, *PLACES, *THINGS, *(f"{place}," for place in PLACES), "[unknown]"}
    vocabulary = {token: n for n, token in enumerate(sorted(tokens))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[unknown]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[unknown]")
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(vocabulary),
        hidden_size=24,
        intermediate_size=29,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=10,
    )
    model = AutoModelForCausalLM.from_config(config)
    return wrap_model(model, tokenizer, name="reader of tokens")


def test_texts_with_two_names_say_one_once_and_one_twice(reader_of_tokens):
    text = name_texts(reader_of_tokens, rows=6, seed=0)
    assert len(text.ids) == 6
    for ids, once, twice, place in zip(*text, strict=True):
        assert (ids == once).sum() == 1 and ids[place] == once
        assert (ids == twice).sum() == 2


def test_the_name_mover_score_is_what_a_head_adds_times_where_it_looks(reader_of_tokens):
    from saccade.interp.heads.capture import capture
    from saccade.interp.heads.residual_path import direct_logits
    from saccade.interp.studies.roles.names import NAME_ROWS

    model = reader_of_tokens
    text = name_texts(model, rows=NAME_ROWS, seed=0)
    found = find_roles(model, roles=("name-mover",)).scores["name-mover"]
    run = capture(model, text.ids, residual=True, attention=[0, 1])
    for layer in (0, 1):
        for head in range(3):
            added, looked = 0.0, 0.0
            for row in range(len(text.ids)):
                both = torch.stack([text.once[row], text.twice[row]])
                one = run._replace(
                    z={layer: run.z[layer][row : row + 1]},
                    final=run.final[row : row + 1],
                    final_residual=run.final_residual[row : row + 1],
                )
                once, twice = (
                    float(
                        direct_logits(model, one, layer, w.view(1, 1), positions=[-1])[0, 0, head]
                    )
                    for w in both
                )
                added += (once - twice) / len(text.ids)
                looked += float(run.attention[layer][row, head, -1, text.place[row]]) / len(
                    text.ids
                )
            assert float(found[layer][head]) == pytest.approx(added * looked, abs=1e-5)


def test_a_model_that_splits_names_has_no_name_movers_to_show(stories):
    with pytest.raises(ModelError, match="splits names into pieces"):
        find_roles(stories, roles=("name-mover",))


def test_a_role_that_cannot_be_measured_is_left_out_alone(stories, tmp_path):
    asked = ("previous", "name-mover", "function-vector")
    found = find_roles(stories, roles=asked, data=tmp_path, leave_out=True)
    assert set(found.found) == {"previous"} and set(found.left_out) == set(asked) - {"previous"}
    assert "splits names into pieces" in found.left_out["name-mover"]
    alone = find_roles(stories, roles=("previous",)).scores["previous"]
    assert all(torch.equal(row, alone[layer]) for layer, row in found.scores["previous"].items())
    with pytest.raises(ModelError, match="splits names into pieces"):
        find_roles(stories, roles=asked[:2], data=tmp_path)


def test_a_damaged_data_set_costs_its_own_role_alone(stories, tmp_path):
    (tmp_path / "function-vectors").mkdir()
    for name in ("antonym", "capitalize"):
        (tmp_path / "function-vectors" / f"{name}.json").write_text("[")
    asked = ("previous", "function-vector")
    found = find_roles(stories, roles=asked, data=tmp_path, leave_out=True)
    assert set(found.found) == {"previous"} and "cannot read" in found.left_out["function-vector"]


def test_roles_are_the_same_for_the_same_seed_and_go_into_json(stories):
    first, again = (find_roles(stories, roles=("induction", "previous")) for _ in range(2))
    assert first.to_json() == again.to_json()
    heads = json.loads(first.to_json())["heads"]
    assert len(heads) == stories.n_heads
    assert all(0 <= head["induction"] <= 1 for head in heads)


def test_an_unknown_role_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="no role 'inducton'") as error:
        checked_roles(["inducton"])
    assert "did you mean 'induction'?" in error.value.hint
