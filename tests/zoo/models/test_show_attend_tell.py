"""Show, Attend and Tell: against the paper's equations in loops, and hard against enumeration."""

import itertools

import pytest
import torch
from torch import nn

from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.models.show_attend_tell import ShowAttendTell
from saccade.zoo.objectives.variational import exact_bound
from saccade.zoo.tasks.digit_captions import Sentences

# Distinct primes, so that a swapped axis cannot pass by luck.
IMAGES, D_A, ROWS, COLUMNS, WORDS, D_E, D_H = 2, 5, 2, 3, 11, 7, 13
SAID = torch.tensor([[4, 9, 2, 0], [7, 5, 10, 2]])


@pytest.fixture
def maps():
    torch.manual_seed(1)
    return torch.randn(IMAGES, D_A, ROWS, COLUMNS)


def captioner(looking="soft", **more):
    torch.manual_seed(0)
    sizes = {"d_annotation": D_A, "n_words": WORDS, "d_embed": D_E, "d_hidden": D_H}
    return ShowAttendTell(nn.Identity(), looking=looking, **sizes, **more)


def by_hand(model, maps, words, *, places=None):
    """The equations of section 3.1, one image, one cell and one word at a time.

    With ``places`` each word looks at that cell alone. Returns log-probabilities of the next word,
    and the weights.
    """
    a = [maps[:, row, column] for row in range(ROWS) for column in range(COLUMNS)]
    mean = sum(a) / len(a)
    h, c = torch.tanh(model.first_hidden(mean)), torch.tanh(model.first_cell(mean))
    (of_input, of_state, bias, _) = model.cell.kernel.all_weights[0]
    found, alphas = [], []
    for t, word in enumerate(words):
        score = model.score
        q = score.query_proj(h)
        e = torch.stack([score.score_proj(torch.tanh(q + score.key_proj(each)))[0] for each in a])
        alpha = e.exp() / e.exp().sum()
        chosen = alpha if places is None else torch.eye(len(a))[places[t]]
        z = torch.sigmoid(model.gate(h)) * sum(w * each for w, each in zip(chosen, a, strict=True))
        y = model.embed.weight[word]
        gates = of_input @ y + of_state @ h + bias + model.context_gates(z)
        i, f, g, o = gates.split(D_H)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        logits = model.output(y + model.hidden_proj(h) + model.context_proj(z))
        found.append(logits.log_softmax(-1))
        alphas.append(alpha)
    return torch.stack(found), torch.stack(alphas)


def test_soft_attention_agrees_with_the_papers_equations(maps):
    model, sentences = captioner(), Sentences.of(SAID)
    told = model.tell(maps, sentences)
    logits = model.output(told.features).log_softmax(-1)
    at = 0
    for row in range(IMAGES):
        n = int(sentences.target_mask[row].sum())
        expected, weights = by_hand(model, maps[row], sentences.target_in[row, :n].tolist())
        torch.testing.assert_close(logits[at : at + n], expected)
        torch.testing.assert_close(told.weights[row, :n], weights)
        at += n
    torch.testing.assert_close(told.weights.sum(-1), torch.ones(IMAGES, 4))


def test_the_loss_is_the_likelihood_and_the_doubly_stochastic_term(maps):
    model, sentences = captioner(), Sentences.of(SAID)
    nll, uneven = 0.0, 0.0
    for row in range(IMAGES):
        n = int(sentences.target_mask[row].sum())
        found, weights = by_hand(model, maps[row], sentences.target_in[row, :n].tolist())
        nll -= sum(found[t, SAID[row, t]] for t in range(n))
        uneven += sum((1 - weights[:, cell].sum()) ** 2 for cell in range(ROWS * COLUMNS))
    out = model.loss(maps, sentences, cover_weight=0.3)
    torch.testing.assert_close(out.loss, (nll + 0.3 * uneven) / IMAGES)
    torch.testing.assert_close(out.nats, nll.detach() / sentences.target_mask.sum())
    torch.testing.assert_close(out.uneven, uneven.detach() / IMAGES)


def test_decoding_is_the_same_walk_as_training(maps):
    model = captioner().eval()
    model.output.bias.data[:2] = -99.0  # it never says padding or a beginning
    for found in (greedy(model, maps, max_length=6), beam(model, maps, size=1, max_length=6).best):
        for row, each in enumerate(found):
            said = Sentences.of(torch.tensor([[*each.ids, 2][:6]]))
            log_probs, weights = by_hand(model, maps[row], said.target_in[0].tolist())
            ids = said.target_out[0]
            expected = sum(log_probs[t, ids[t]] for t in range(len(ids)))
            assert each.log_prob == pytest.approx(expected.item(), abs=1e-4)
            torch.testing.assert_close(each.weights, weights)


def test_several_sentences_about_an_image_are_told_as_each_would_be_alone(maps):
    model = captioner()
    said = torch.tensor([[[4, 9, 2], [8, 2, 0]], [[7, 5, 2], [6, 6, 2]]])
    together = model(maps, Sentences.of(said.flatten(0, 1)))
    apart = [
        model(maps[row : row + 1], Sentences.of(said[row, k : k + 1]))
        for row in range(IMAGES)
        for k in range(2)
    ]
    torch.testing.assert_close(together, torch.cat(apart))


def test_hard_attention_reads_one_cell_and_in_evaluation_the_likeliest(maps):
    model = captioner("hard").eval()
    sentences = Sentences.of(SAID[1:])
    told = model.tell(maps[1:], sentences)
    places = told.weights[0].argmax(-1).tolist()
    assert ((told.weights == 0) | (told.weights == 1)).all()
    expected, alphas = by_hand(model, maps[1], sentences.target_in[0].tolist(), places=places)
    torch.testing.assert_close(model.output(told.features).log_softmax(-1), expected)
    assert alphas.argmax(-1).tolist() == places


def test_the_sampled_gradient_of_hard_attention_is_that_of_the_bound(maps, monkeypatch):
    """Two words and six cells: all 36 paths can be enumerated."""
    monkeypatch.setattr("saccade.zoo.models.show_attend_tell.SHARE_SOFT", 0.0)
    model = captioner("hard")
    words, said = [1, 4], [4, 2]
    # Where to look must matter, or the gradient is lost in the noise.
    with torch.no_grad():
        for weight in (model.score.score_proj.weight, model.context_proj.weight):
            weight.mul_(5)
        model.baseline.predict.weight.zero_()
        model.baseline.predict.bias.fill_(-4.0)
    log_location, log_likelihood = [], []
    for places in itertools.product(range(ROWS * COLUMNS), repeat=2):
        found, alphas = by_hand(model, maps[0], words, places=places)
        log_location.append(sum(alphas[t, places[t]].log() for t in range(2)))
        log_likelihood.append(sum(found[t, said[t]] for t in range(2)))
    bound = exact_bound(torch.stack(log_location), torch.stack(log_likelihood))
    chosen = [model.score.query_proj.weight, model.gate.weight, model.output.weight]
    expected = torch.autograd.grad(-bound, chosen)
    many = 20_000
    sentences = Sentences.of(torch.tensor([said]).expand(many, 2).contiguous())
    out = model.loss(maps[:1].expand(many, *maps.shape[1:]), sentences)
    for found, exact in zip(torch.autograd.grad(out.loss, chosen), expected, strict=True):
        assert (found - exact).norm() < 0.15 * exact.norm()


def test_while_hard_attention_learns_half_of_the_images_are_seen_softly(maps):
    model = captioner("hard")
    is_soft = torch.tensor([True, False])
    told = model.tell(maps, Sentences.of(SAID), is_soft=is_soft)
    _, alphas = by_hand(model, maps[0], [1, 4, 9])
    torch.testing.assert_close(told.weights[0, :3], alphas)
    assert set(told.weights[1].unique().tolist()) == {0.0, 1.0}
    out = model.loss(maps, Sentences.of(SAID), entropy_weight=0.1)
    out.loss.backward()
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)


def test_padding_changes_nothing(maps):
    model = captioner()
    wider = torch.cat([SAID, torch.zeros(IMAGES, 3, dtype=torch.long)], dim=1)
    torch.testing.assert_close(
        model(maps, Sentences.of(wider)), model(maps, Sentences.of(SAID)), rtol=0, atol=0
    )
