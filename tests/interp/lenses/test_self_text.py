"""Text sampled from a model: the same each time, and of the model's own law."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.lenses.self_text import (
    draw,
    requests,
    sample_batch,
    sample_batches,
    sampling_fingerprint,
    write_corpus,
)

WINDOW, BATCH = 13, 5


def sampled(model, **changed) -> list[Tensor]:
    """All tokens can be drawn, so that the law is the model's own."""
    asked = {"n_tokens": WINDOW * 12, "window": WINDOW, "batch": BATCH, "top_p": 1.0} | changed
    return list(sample_batches(model, **asked))


def all_ids(batches: list[Tensor]) -> Tensor:
    return torch.cat(batches)


def test_a_second_run_gives_the_same_text(stories):
    first, second = sampled(stories), sampled(stories)
    assert torch.equal(all_ids(first), all_ids(second))


def test_another_seed_gives_another_text(stories):
    one, other = (all_ids(sampled(stories, n_tokens=61 * 5, window=61, seed=s)) for s in (1, 2))
    # Stories begin alike ("Once upon a time"), so only what comes later is compared.
    assert (one != other)[:, 20:].float().mean() > 0.5


def test_batches_have_whole_windows_and_the_last_one_the_rows_that_are_left(stories):
    shapes = [tuple(b.shape) for b in sampled(stories, n_tokens=WINDOW * 11 + 1)]
    assert shapes == [(5, 13), (5, 13), (2, 13)]


def test_skipping_batches_gives_the_same_later_batches(stories):
    whole, rest = sampled(stories), sampled(stories, skip_batches=2)
    assert len(rest) == len(whole) - 2
    assert torch.equal(all_ids(whole[2:]), all_ids(rest))
    alone = sample_batch(stories, index=1, rows=BATCH, window=WINDOW, seed=0, top_p=1.0)
    assert torch.equal(alone, whole[1])
    assert sampled(stories, skip_batches=9) == []


def test_more_text_begins_with_the_text_of_a_shorter_run(stories):
    short, long = sampled(stories, n_tokens=WINDOW * 10), sampled(stories, n_tokens=WINDOW * 12)
    assert torch.equal(all_ids(short), all_ids(long)[:10])


def test_rows_start_with_the_beginning_of_text_and_then_differ(stories):
    ids = all_ids(sampled(stories, n_tokens=41 * 101, window=41, batch=101))
    assert (ids[:, 0] == stories.tokenizer.bos_token_id).all()
    assert len(ids.unique(dim=0)) > 0.95 * len(ids)


def test_second_words_follow_the_models_own_probabilities(stories):
    n = 4001
    ids = all_ids(sampled(stories, n_tokens=2 * n, window=2, batch=1009))
    start = torch.full((2, 1), stories.tokenizer.bos_token_id)
    expected = stories.hf(input_ids=start).logits[0, -1].softmax(-1)
    counts = torch.bincount(ids[:, 1], minlength=stories.d_vocab)
    # Chi-square over the words seen at least five times in expectation, the others as one.
    common = expected * n >= 5
    wanted = torch.cat([expected[common] * n, expected[~common].sum()[None] * n])
    found = torch.cat([counts[common], counts[~common].sum()[None]])
    chi_square = ((found - wanted) ** 2 / wanted.clamp_min(1e-9)).sum()
    freedom = len(wanted) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_later_words_follow_the_models_own_probabilities_too(stories):
    """A word's surprise has a mean known from the model: its entropy, position by position."""
    ids = sampled(stories, n_tokens=WINDOW * 499, batch=499)[0]
    logs = stories.hf(input_ids=ids).logits.log_softmax(-1)[:, :-1]
    surprise = -logs.gather(-1, ids[:, 1:, None])[..., 0]
    excess = surprise - -(logs.exp() * logs).sum(-1)
    assert excess.mean().abs() < 4 * excess.std() / excess.numel() ** 0.5


def test_a_low_temperature_gives_the_likeliest_words(stories):
    ids = sampled(stories, temperature=1e-3)[0]
    likeliest = stories.hf(input_ids=ids).logits.argmax(-1)
    assert (ids[:, 1:] == likeliest[:, :-1]).float().mean() > 0.95


def test_draws_agree_with_counting_and_never_give_an_impossible_word():
    torch.manual_seed(0)
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf, 2.0, -torch.inf]])
    n = 20_011
    first, second = (draw(row.expand(n, 3), torch.rand(n, 1)) for row in logits)
    assert (first != 1).all() and (second == 1).all()
    share = (first == 2).float().mean().item()
    assert share == pytest.approx(torch.tensor(1.0).sigmoid().item(), abs=4 * (0.25 / n) ** 0.5)
    edges = draw(logits, torch.tensor([[0.0], [1.0 - 2**-24]]))
    assert edges.tolist() == [0, 1]


def test_a_model_with_a_sliding_window_is_sampled_like_one_plain_pass():
    model = tiny_mistral(sliding_window=7)
    ids = sampled(model, window=17, n_tokens=17 * 3, temperature=1e-6)[0]
    likeliest = model.hf(input_ids=ids).logits.argmax(-1)
    assert torch.equal(ids[:, 1:], likeliest[:, :-1])


def test_without_a_start_token_rows_begin_with_words_drawn_at_random():
    first = sampled(tiny_mistral(), n_tokens=WINDOW * 307, batch=307)[0][:, 0]
    assert len(first.unique()) > 80  # of 101 words


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"window": 513}, "window of 513 tokens is longer than the model's context of 512"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"n_tokens": 0}, "n_tokens must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"temperature": 0.0}, "temperature must be a number above 0, got 0.0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
    ],
)
def test_what_cannot_be_sampled_is_refused(stories, asked, words):
    with pytest.raises(UsageError, match=words):
        sampled(stories, **asked)


def tiny_mistral(*, sliding_window: int | None = None):
    from transformers import MistralConfig, MistralForCausalLM

    from saccade.interp.heads.model import wrap_model

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=101,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=4,
        max_position_embeddings=64,
        sliding_window=sliding_window,
        bos_token_id=None,
        eos_token_id=None,
    )
    return wrap_model(MistralForCausalLM(config).float(), None, name="tiny mistral")


def test_a_corpus_the_model_writes_is_its_sampled_text_and_knows_its_bytes(stories):
    written = write_corpus(stories, n_tokens=61 * 5, window=61, seed=1)
    assert torch.equal(
        written.windows,
        all_ids(sampled(stories, n_tokens=61 * 5, window=61, batch=64, seed=1, top_p=0.95)),
    )
    text = stories.tokenizer.batch_decode(written.windows, skip_special_tokens=True)
    assert written.n_bytes == sum(len(row.encode("utf-8")) for row in text)
    other = write_corpus(stories, n_tokens=61 * 5, window=61, seed=2)
    assert other.fingerprint != written.fingerprint


TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def talking(stories):
    """The little model with a chat template."""
    tokenizer = copy.deepcopy(stories.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return replace(stories, tokenizer=tokenizer)


def answers(model, n_rows: int, **changed) -> Tensor:
    return all_ids(sampled(model, n_tokens=WINDOW * n_rows, batch=n_rows, **changed))


def test_a_chat_model_answers_requests_and_only_its_answers_are_the_text(talking):
    """At a low temperature each row is the likeliest answer to one of the requests."""
    found = answers(talking, 7, temperature=1e-6)
    prefix = torch.tensor(talking.encoding.prefix)
    assert (found[:, : len(prefix)] == prefix).all()
    barred = torch.tensor(sorted(talking.encoding.special))
    expected = set()
    for request in requests():
        ids = talking.encode_chat(request).ids
        for _ in range(WINDOW - len(prefix)):
            logits = talking.hf(input_ids=ids).logits[:, -1]
            logits[:, barred] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
        expected.add(tuple(ids[0, -(WINDOW - len(prefix)) :].tolist()))
    for row in found[:, len(prefix) :].tolist():
        assert tuple(row) in expected


def test_an_answer_has_no_special_tokens(talking):
    found = answers(talking, 101, window=31)[:, len(talking.encoding.prefix) :]
    special = torch.tensor(sorted(talking.encoding.special))
    assert not torch.isin(found, special).any()


def test_answers_are_the_same_each_time_whatever_else_is_sampled(talking):
    whole = sampled(talking)
    alone = sample_batch(talking, index=1, rows=BATCH, window=WINDOW, seed=0, top_p=1.0)
    assert torch.equal(alone, whole[1]) and not torch.equal(whole[0], whole[1])


def test_requests_without_room_in_the_context_are_left_out(talking, monkeypatch):
    monkeypatch.setattr("saccade.interp.lenses.self_text.requests", lambda: ("a " * 480,))
    start = answers(talking, 3, window=61)
    assert (start[:, 0] == talking.tokenizer.bos_token_id).all()


def test_other_requests_and_another_template_are_another_text(talking, stories, monkeypatch):
    found = {sampling_fingerprint(talking, 13), sampling_fingerprint(stories, 13)}
    monkeypatch.setattr("saccade.interp.lenses.self_text.requests", lambda: ("Why?",))
    found.add(sampling_fingerprint(talking, 13))
    monkeypatch.setattr("saccade.interp.lenses.self_text.TOP_P", 0.5)
    found.add(sampling_fingerprint(talking, 13))
    assert len(found) == 4


def test_requests_are_many_and_no_two_alike():
    assert 60 <= len(requests()) <= 100 and len(set(requests())) == len(requests())


def test_a_nucleus_is_the_likeliest_tokens_that_together_have_its_probability():
    """Against a loop over the sorted probabilities, with a vocabulary above and below the cut."""
    torch.manual_seed(0)
    for d_vocab, spread in ((11, 1.0), (1031, 3.0), (2053, 0.1)):
        logits = spread * torch.randn(2, d_vocab)
        for row in logits:
            p, tokens = row.softmax(-1).sort(descending=True)
            nucleus, mass = [], 0.0
            for each, token in zip(p.tolist(), tokens.tolist(), strict=True):
                if mass >= 0.9:
                    break
                nucleus.append(token)
                mass += each
            n = 20_011
            drawn = draw(row.expand(n, -1), torch.linspace(0, 1 - 2**-24, n)[:, None], top_p=0.9)
            counts = torch.bincount(drawn, minlength=d_vocab).double() / n
            expected = torch.zeros(d_vocab, dtype=torch.float64)
            expected[nucleus] = row.softmax(-1).double()[nucleus] / mass
            assert (counts - expected).abs().max() < 1e-3
            assert set(drawn.tolist()) <= set(nucleus)
