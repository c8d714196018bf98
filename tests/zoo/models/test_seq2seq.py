import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from saccade.zoo.models.seq2seq import INIT, Seq2Seq
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.vocabulary import Ragged

D_EMBED, D_HIDDEN, LAYERS = 5, 7, 3


def torch_lstm(stack):
    """torch's own deep LSTM with the weights of ours."""
    lstm = nn.LSTM(D_EMBED, D_HIDDEN, num_layers=LAYERS, batch_first=True)
    for layer, cell in enumerate(stack.layers):
        for name, weight in cell.kernel.named_parameters():
            getattr(lstm, name.replace("_l0", f"_l{layer}")).data.copy_(weight)
    return lstm


def model_and_batch(*, is_reversed=False):
    torch.manual_seed(0)
    model = Seq2Seq(n_source=31, n_target=37, d_embed=D_EMBED, d_hidden=D_HIDDEN, n_layers=LAYERS)
    source, target = [[7, 5, 11, 13], [17], [19, 23]], [[29, 5], [7, 11, 13], [23]]
    pairs = Pairs.of(Ragged.of(source), Ragged.of(target), is_reversed=is_reversed)
    return model.eval(), pairs.batch(torch.arange(3))


@torch.no_grad()
def test_it_is_torchs_deep_lstm_over_packed_sources():
    model, batch = model_and_batch()
    lengths = batch.source_mask.sum(1)
    words = model.source_embed(batch.source)
    packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    _, state = torch_lstm(model.encoder)(packed)
    hidden, _ = torch_lstm(model.decoder)(model.target_embed(batch.target_in), state)
    torch.testing.assert_close(model(batch), model.output(hidden)[batch.target_mask])


@torch.no_grad()
def test_a_reversed_source_is_read_from_its_last_word_to_its_first():
    model, batch = model_and_batch(is_reversed=True)
    _, plain = model_and_batch()
    assert batch.source[0].tolist() == [13, 11, 5, 7, 2]
    assert batch.source[1].tolist() == [17, 2, 0, 0, 0]
    one_word = plain.target_mask.nonzero()[:, 0] == 1
    torch.testing.assert_close(model(batch)[one_word], model(plain)[one_word])
    assert not torch.allclose(model(batch)[~one_word], model(plain)[~one_word])


def test_all_weights_begin_as_in_the_paper():
    torch.manual_seed(0)
    model = Seq2Seq(n_source=31, n_target=37)
    for weight in model.parameters():
        if weight.requires_grad:
            assert weight.abs().max() <= INIT
            assert weight.abs().max() > 0.9 * INIT
        else:  # torch's second bias, which is no weight of its own
            assert (weight == 0).all()
