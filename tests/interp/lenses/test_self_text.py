"""Text sampled from a model: the same each time, and of the model's own law."""

import pytest
import torch
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.lenses.self_text import (
    SampledBatch,
    draw,
    sample_batch,
    sample_batches,
    write_corpus,
)

WINDOW, BATCH = 13, 5


def sampled(model, **changed) -> list[SampledBatch]:
    asked = {"n_tokens": WINDOW * 12, "window": WINDOW, "batch": BATCH} | changed
    return list(sample_batches(model, **asked))


def all_ids(batches: list[SampledBatch]) -> Tensor:
    return torch.cat([batch.ids for batch in batches])


def test_a_second_run_gives_the_same_text_and_the_same_states(stories):
    first, second = sampled(stories), sampled(stories)
    assert torch.equal(all_ids(first), all_ids(second))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.final, other.final)
        assert all(torch.equal(one.z[layer], other.z[layer]) for layer in one.z)


def test_another_seed_gives_another_text(stories):
    one, other = (all_ids(sampled(stories, n_tokens=61 * 5, window=61, seed=s)) for s in (1, 2))
    # Stories begin alike ("Once upon a time"), so only what comes later is compared.
    assert (one != other)[:, 20:].float().mean() > 0.5


def test_states_are_those_of_one_plain_pass_over_the_text(stories):
    for batch in sampled(stories, window=31, n_tokens=31 * 7):
        plain = capture(stories, batch.ids)
        torch.testing.assert_close(batch.final, plain.final, atol=1e-4, rtol=1e-4)
        assert batch.z.keys() == plain.z.keys()
        for layer, z in plain.z.items():
            torch.testing.assert_close(batch.z[layer], z, atol=1e-4, rtol=1e-4)


def test_batches_have_whole_windows_and_the_last_one_the_rows_that_are_left(stories):
    shapes = [tuple(b.ids.shape) for b in sampled(stories, n_tokens=WINDOW * 11 + 1)]
    assert shapes == [(5, 13), (5, 13), (2, 13)]
    for batch in sampled(stories):
        assert batch.final.shape == (*batch.ids.shape, stories.d_model)
        assert set(batch.z) == {layer.index for layer in stories.layers}


def test_skipping_batches_gives_the_same_later_batches(stories):
    whole, rest = sampled(stories), sampled(stories, skip_batches=2)
    assert len(rest) == len(whole) - 2
    assert torch.equal(all_ids(whole[2:]), all_ids(rest))
    alone = sample_batch(stories, index=1, rows=BATCH, window=WINDOW, seed=0, temperature=1.0)
    assert torch.equal(alone.ids, whole[1].ids)
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
    batch = sampled(stories, n_tokens=WINDOW * 499, batch=499)[0]
    logs = stories.hf(input_ids=batch.ids).logits.log_softmax(-1)[:, :-1]
    surprise = -logs.gather(-1, batch.ids[:, 1:, None])[..., 0]
    excess = surprise - -(logs.exp() * logs).sum(-1)
    assert excess.mean().abs() < 4 * excess.std() / excess.numel() ** 0.5


def test_a_low_temperature_gives_the_likeliest_words(stories):
    ids = sampled(stories, temperature=1e-3)[0].ids
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
    batch = sampled(model, window=17, n_tokens=17 * 3)[0]
    plain = capture(model, batch.ids)
    torch.testing.assert_close(batch.final, plain.final, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(batch.z[1], plain.z[1], atol=1e-4, rtol=1e-4)


def test_without_a_start_token_rows_begin_with_words_drawn_at_random():
    first = sampled(tiny_mistral(), n_tokens=WINDOW * 307, batch=307)[0].ids[:, 0]
    assert len(first.unique()) > 80  # of 101 words


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"window": 513}, "window of 513 tokens is longer than the model's context of 512"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"n_tokens": 0}, "n_tokens must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"temperature": 0.0}, "temperature must be a number above 0, got 0.0"),
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
        written.windows, all_ids(sampled(stories, n_tokens=61 * 5, window=61, batch=64, seed=1))
    )
    text = stories.tokenizer.batch_decode(written.windows, skip_special_tokens=True)
    assert written.n_bytes == sum(len(row.encode("utf-8")) for row in text)
    other = write_corpus(stories, n_tokens=61 * 5, window=61, seed=2)
    assert other.fingerprint != written.fingerprint
