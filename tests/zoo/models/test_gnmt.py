import pytest
import torch

from saccade.zoo.models.gnmt import Gnmt
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.vocabulary import Padded, Ragged

N_SOURCE, N_TARGET, D = 31, 37, 7


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Gnmt(n_source=N_SOURCE, n_target=N_TARGET, d_model=D, n_layers=4).eval()


@pytest.fixture
def batch():
    source, target = [[7, 5, 11], [17, 3]], [[29, 5], [7, 11, 13]]
    return Pairs.of(Ragged.of(source), Ragged.of(target)).batch(torch.arange(2))


def attended_by_loops(model, query, keys):
    """Additive attention of one query, key by key."""
    score = model.attention.score
    scores = [
        score.score_proj(torch.tanh(score.query_proj(query) + score.key_proj(key))) for key in keys
    ]
    weights = torch.cat(scores).softmax(0)
    return sum(weight * key for weight, key in zip(weights, keys, strict=True))


@torch.no_grad()
def test_it_is_figure_one_of_the_paper_layer_by_layer(model, batch):
    found, row = model(batch), 0
    for sentence in range(2):
        source = batch.source[sentence][batch.source_mask[sentence]]
        ids = source[None]
        keys = model.read(ids, torch.ones_like(ids, dtype=torch.bool)).values[0]
        bottom = model.bottom.start(1)
        states = [cell.start(1) for cell in model.upper]
        for token in batch.target_in[sentence][batch.target_mask[sentence]]:
            context = attended_by_loops(model, bottom.hidden[0], keys)[None]
            word = model.target_embed(token)[None]
            x, bottom = model.bottom.step(torch.cat([word, context], -1), bottom)
            first, states[0] = model.upper[0].step(torch.cat([x, context], -1), states[0])
            y, states[1] = model.upper[1].step(torch.cat([first, context], -1), states[1])
            second = first + y
            y, states[2] = model.upper[2].step(torch.cat([second, context], -1), states[2])
            torch.testing.assert_close(found[row], model.output(second + y)[0])
            row += 1
    assert row == len(found)


@torch.no_grad()
def test_only_the_lowest_encoder_layer_reads_both_ways(model, batch):
    """Its output at the first word depends on the last one, as all that follow do through it."""
    changed = batch.source.clone()
    changed[0, 2] = 13
    words, other = model.source_embed(batch.source), model.source_embed(changed)
    mask = batch.source_mask
    assert not torch.allclose(
        model.both_ways.unroll(words, mask=mask).outputs[0, 0],
        model.both_ways.unroll(other, mask=mask).outputs[0, 0],
    )
    torch.testing.assert_close(
        model.encoder.unroll(words, mask=mask).outputs[0, :2],
        model.encoder.unroll(other, mask=mask).outputs[0, :2],
    )


@torch.no_grad()
def test_the_attention_is_asked_by_the_step_before(model, batch):
    memory, state = model.start(Padded(batch.source, batch.source_mask))
    first = [model.step(torch.full((2,), token), memory, state) for token in (1, 5)]
    torch.testing.assert_close(first[0].weights, first[1].weights)
    assert not torch.allclose(first[0].log_probs, first[1].log_probs)
    second = [model.step(torch.full((2,), 7), memory, one.state) for one in first]
    assert not torch.allclose(second[0].weights, second[1].weights)


def test_deeper_stacks_have_more_residual_layers():
    torch.manual_seed(0)
    model = Gnmt(n_source=N_SOURCE, n_target=N_TARGET, d_model=D, n_layers=8)
    assert len(model.upper) == 7 and len(model.encoder.layers) == 7
    assert model.encoder.residual_from == 1  # the third of all, the lowest being the other kind
