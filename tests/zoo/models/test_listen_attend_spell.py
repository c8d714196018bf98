"""Listen, Attend and Spell: training and decoding compute one thing, with any attention."""

import pytest
import torch

from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.models.listen_attend_spell import ListenAttendSpell
from saccade.zoo.tasks.speech import FrameBatch, Frames
from saccade.zoo.tasks.vocabulary import BOS, EOS

BATCH, FRAMES, D_FRAME, SYMBOLS = 3, 19, 5, 11


@pytest.fixture(params=[("additive", "soft"), ("mixed", "soft"), ("bilinear", "monotonic")])
def speller(request):
    score, select = request.param
    torch.manual_seed(0)
    return ListenAttendSpell(
        d_frame=D_FRAME,
        n_symbols=SYMBOLS,
        d_hidden=7,
        d_embed=3,
        n_layers=2,
        score=score,
        select=select,
    ).eval()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    frame_mask = torch.arange(FRAMES) < torch.tensor([[19], [12], [7]])
    text_mask = torch.arange(4) < torch.tensor([[4], [2], [1]])
    text = torch.randint(4, SYMBOLS, (BATCH, 4)).where(text_mask, 0)
    return FrameBatch(torch.randn(BATCH, FRAMES, D_FRAME), frame_mask, text, text_mask)


def test_a_spelling_begins_with_bos_and_ends_in_eos(batch):
    spelling = batch.spelling
    for row, n in enumerate((4, 2, 1)):
        symbols = batch.text[row, :n].tolist()
        assert spelling.target_in[row, : n + 1].tolist() == [BOS, *symbols]
        assert spelling.target_out[row, : n + 1].tolist() == [*symbols, EOS]
        assert spelling.mask[row].tolist() == [True] * (n + 1) + [False] * (4 - n)


def test_step_by_step_it_says_what_it_says_at_once(speller, batch):
    logits, spelling = speller(batch), batch.spelling
    memory, state = speller.start(batch.source)
    steps = []
    for tokens in spelling.target_in.unbind(1):
        log_probs, state, weights, _ = speller.step(tokens, memory, state)
        steps.append(log_probs)
        assert (weights.masked_fill(memory.mask, 0.0) == 0).all()
    by_steps = torch.stack(steps, 1)[spelling.mask]
    torch.testing.assert_close(logits.log_softmax(-1), by_steps)


def test_a_beam_of_one_is_greedy_and_hypotheses_do_not_mix(speller, batch):
    first = greedy(speller, batch.source, max_length=6)
    alone = beam(speller, batch.source, size=1, max_length=6).best
    # At the limit a beam makes all end, greedy search cuts them.
    assert [each.ids[:5] for each in alone] == [each.ids[:5] for each in first]
    wide = beam(speller, batch.source, size=4, max_length=6).best
    for row, found in enumerate(wide):
        n = int(batch.frame_mask[row].sum())
        one = Frames(batch.frames[row : row + 1, :n], batch.frame_mask[row : row + 1, :n])
        only = beam(speller, one, size=4, max_length=6).best[0]
        assert only.ids == found.ids
        assert only.log_prob == pytest.approx(found.log_prob, abs=1e-4)


def test_monotonic_attention_never_goes_back(batch):
    torch.manual_seed(0)
    model = ListenAttendSpell(
        d_frame=D_FRAME, n_symbols=SYMBOLS, d_hidden=7, n_layers=1, select="monotonic"
    ).eval()
    with torch.no_grad():
        model.attention.select.offset.fill_(0.0)  # at -4 an untrained one walks past everything
    for found in greedy(model, batch.source, max_length=6):
        places = [row.argmax().item() for row in found.weights if row.sum() > 0]
        assert places == sorted(places)
