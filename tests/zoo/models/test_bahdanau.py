import torch
from torch.nn import functional

from saccade.zoo.models.bahdanau import BahdanauTranslator
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.vocabulary import Ragged


def gru(weights, x, h):
    """The gates of a GRU one by one, in torch's order."""
    of_input, of_state, input_bias, state_bias = weights
    x_r, x_u, x_n = (of_input @ x + input_bias).chunk(3)
    h_r, h_u, h_n = (of_state @ h + state_bias).chunk(3)
    reset, update = (x_r + h_r).sigmoid(), (x_u + h_u).sigmoid()
    candidate = (x_n + reset * h_n).tanh()
    return (1 - update) * candidate + update * h


def weights_of(cell):
    return cell.kernel.all_weights[0]


@torch.no_grad()
def test_it_is_the_paper_word_by_word():
    torch.manual_seed(0)
    model = BahdanauTranslator(n_source=31, n_target=37, d_embed=5, d_hidden=7).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    source, target = [[7, 5, 11], [17, 3]], [[29, 5], [7, 11, 13]]
    batch = Pairs.of(Ragged.of(source), Ragged.of(target)).batch(torch.arange(2))
    found, row = model(batch), 0
    score = model.attention.score
    for sentence in range(2):
        words = model.source_embed(batch.source[sentence][batch.source_mask[sentence]])
        ahead, back, h = [], [], torch.zeros(7)
        for word in words:
            h = gru(weights_of(model.encoder.forward_cell), word, h)
            ahead.append(h)
        h = torch.zeros(7)
        for word in words.flip(0):
            h = gru(weights_of(model.encoder.backward_cell), word, h)
            back.insert(0, h)
        annotations = [torch.cat(both) for both in zip(ahead, back, strict=True)]
        s = torch.tanh(model.first(back[0]))
        of_word, of_state, input_bias, state_bias = weights_of(model.decoder)
        both = (torch.cat([of_word, model.context_proj.weight], 1), of_state, input_bias)
        for token in batch.target_in[sentence][batch.target_mask[sentence]]:
            e = torch.stack(
                [
                    score.score_proj(torch.tanh(score.query_proj(s) + score.key_proj(h)))[0]
                    for h in annotations
                ]
            )
            a = e.softmax(0)
            c = sum(weight * h for weight, h in zip(a, annotations, strict=True))
            word = model.target_embed.weight[token]
            s = gru((*both, state_bias), torch.cat([word, c]), s)
            units = model.before_output(torch.cat([s, word, c]))
            t = torch.stack([pair.max() for pair in units.view(2, 5).T])
            logits = model.target_embed.weight @ t + model.output.bias
            torch.testing.assert_close(found[row], logits, atol=1e-5, rtol=1e-4)
            row += 1
    assert row == len(found)


def test_the_output_is_the_targets_embedding():
    model = BahdanauTranslator(n_source=11, n_target=13, d_embed=5, d_hidden=7)
    assert model.output.weight is model.target_embed.weight
    assert len([p for p in model.parameters() if p.shape == (13, 5)]) == 1


def test_dropout_works_in_training_only():
    torch.manual_seed(0)
    model = BahdanauTranslator(n_source=11, n_target=13, d_embed=5, d_hidden=7, dropout=0.5)
    batch = Pairs.of(Ragged.of([[7, 5]]), Ragged.of([[5, 9]])).batch(torch.arange(1))
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))
    assert functional.softmax(model(batch), -1).sum(-1).allclose(torch.ones(3))
