import pytest
import torch

from saccade.zoo.decoding.ensemble import log_prob_of
from saccade.zoo.models.rnn_encoder_decoder import RnnEncoderDecoder, score_phrases
from saccade.zoo.tasks.pairs import encode_pairs, encode_sources
from saccade.zoo.tasks.tokenizers import WordTokenizer

SOURCES = ["ein Hund", "ein Hund", "ein kleiner Hund", "Hund"]
TARGETS = ["a dog", "a small dog", "a small dog", "dog"]


@pytest.fixture
def tokenizers():
    return WordTokenizer.build(SOURCES), WordTokenizer.build(TARGETS)


@pytest.fixture
def model(tokenizers):
    torch.manual_seed(0)
    source, target = tokenizers
    return RnnEncoderDecoder(
        n_source=len(source), n_target=len(target), d_embed=5, d_hidden=7, d_maxout=3
    ).eval()


@torch.no_grad()
def test_it_is_the_equations_of_the_paper_one_word_after_the_other(model, tokenizers):
    """Section 2.2 and appendix A for one pair; the pairs of the maxout layer by a loop."""
    batch = encode_pairs(
        ["Hund ein"], ["a small dog"], tokenizer=tokenizers[0], target_tokenizer=tokenizers[1]
    ).batch(torch.tensor([0]))
    state = torch.zeros(1, 7)
    for word in model.source_embed(batch.source).unbind(1):
        state = model.encoder.step(word, state).state
    c = torch.tanh(model.summarise(state))
    state = torch.tanh(model.first(c))
    logits = []
    for word in model.target_embed(batch.target_in).unbind(1):
        state = model.decoder.step(torch.cat([word, c], -1), state).state
        s = model.before_maxout(torch.cat([state, word, c], -1))[0]
        maxout = torch.stack([max(s[2 * i], s[2 * i + 1]) for i in range(3)])
        logits.append(model.output.weight @ maxout + model.output.bias)
    torch.testing.assert_close(model(batch), torch.stack(logits))


@torch.no_grad()
def test_a_pair_is_scored_as_decoding_would_score_it(model, tokenizers):
    scored = score_phrases(
        model, SOURCES, TARGETS, tokenizer=tokenizers[0], target_tokenizer=tokenizers[1]
    )
    assert [(each.source, each.target) for each in scored] == [*zip(SOURCES, TARGETS, strict=True)]
    for each in scored:
        source = encode_sources([each.source], tokenizers[0])
        expected = log_prob_of(model, source, [[tokenizers[1].encode(each.target)]])
        assert each.log_prob == pytest.approx(expected.item(), abs=1e-5)
        assert each.log_prob < 0


def test_the_better_of_two_translations_is_found_after_training(model, tokenizers):
    batch = encode_pairs(
        ["ein Hund", "ein kleiner Hund"],
        ["a dog", "a small dog"],
        tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
    ).batch(torch.arange(2))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        (-model.log_prob(batch).mean()).backward()
        optimiser.step()
    small, plain = score_phrases(
        model,
        ["ein kleiner Hund"] * 2,
        ["a small dog", "a dog"],
        tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
    )
    assert small.log_prob > plain.log_prob + 1
