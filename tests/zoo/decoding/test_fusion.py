"""A translator with a language model beside it."""

import pytest
import torch
from steppers import Markov, Reader, beam_by_loops, sources
from torch import nn

from saccade.errors import UsageError
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import DeepFusion, ShallowFusion

D_VOCAB, D_HIDDEN, D_LM = 7, 5, 3


def language_model(seed=0, d_vocab=D_VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return Markov((2 * torch.randn(d_vocab, d_vocab, generator=generator)).softmax(-1))


def found_by(stepper):
    return [one.ids for one in beam(stepper, sources(5), size=3, max_length=9).best]


def test_shallow_fusion_adds_weighted_log_probabilities():
    source, tokens = sources(3), torch.tensor([1, 4, 5])
    translator, lm = Reader(D_VOCAB), language_model()
    fused = ShallowFusion(translator, lm, weight=0.3)
    stepped = fused.step(tokens, *fused.start(source))
    alone = translator.step(tokens, *translator.start(source))
    torch.testing.assert_close(stepped.log_probs, alone.log_probs + 0.3 * lm.log_probs[tokens])
    torch.testing.assert_close(stepped.weights, alone.weights)


def test_with_weight_zero_it_is_the_translator_and_with_a_large_one_the_language_model():
    translator, lm = Reader(D_VOCAB), language_model()
    assert found_by(ShallowFusion(translator, lm, weight=0.0)) == found_by(translator)
    swayed = found_by(ShallowFusion(translator, lm, weight=1e4))
    assert swayed == [one.ids for one in beam(lm, 5, size=3, max_length=9).best]
    assert swayed != found_by(translator)


def test_beam_search_over_a_fusion_agrees_with_loops():
    source = sources(5)
    fused = ShallowFusion(Reader(D_VOCAB), language_model(), weight=0.5)
    settings = {"size": 3, "max_length": 7, "length_penalty": 1.0}
    for s, one in enumerate(beam(fused, source, **settings).best):
        (score, said), *_ = beam_by_loops(fused, source[s : s + 1], **settings)
        assert one.ids == list(said.ids)
        assert one.score == pytest.approx(score)


def test_different_vocabularies_are_refused():
    fused = ShallowFusion(Reader(D_VOCAB), language_model(d_vocab=11))
    with pytest.raises(UsageError, match="has 7 symbols and the language model 11"):
        beam(fused, sources(2), size=2, max_length=3)


def test_a_negative_weight_is_refused():
    with pytest.raises(UsageError, match=r"must not be negative, got -0\.1"):
        ShallowFusion(Reader(), language_model(), weight=-0.1)


def test_deep_fusion_appends_the_gated_state():
    torch.manual_seed(0)
    fusion = DeepFusion(D_LM)
    hidden, lm = torch.randn(2, 11, D_HIDDEN), torch.randn(2, 11, D_LM)
    fused, gate = fusion(hidden, lm)
    torch.testing.assert_close(fused[..., :D_HIDDEN], hidden)
    for row in range(2):
        for pos in range(11):
            z = fusion.gate.weight[0] @ lm[row, pos] + fusion.gate.bias[0]
            expected = z.sigmoid() * lm[row, pos]
            torch.testing.assert_close(fused[row, pos, D_HIDDEN:], expected)
            torch.testing.assert_close(gate[row, pos, 0], z.sigmoid())


def test_deep_fusion_lets_in_a_quarter_at_first_and_trains_only_the_gate():
    fusion, lm = DeepFusion(D_LM), nn.Linear(2, D_LM)
    gate = fusion(torch.zeros(2, D_HIDDEN), torch.zeros(2, D_LM)).gate
    assert gate.mean().item() == pytest.approx(0.269, abs=1e-3)
    hidden = torch.randn(2, D_HIDDEN, requires_grad=True)
    fusion(hidden, lm(torch.ones(2, 2))).hidden.square().sum().backward()
    assert lm.weight.grad is None
    assert hidden.grad is not None and fusion.gate.weight.grad is not None
