"""DRAW against its equations written out, and against laws."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from saccade.errors import UsageError
from saccade.zoo.models.draw import Draw
from saccade.zoo.objectives.variational import bernoulli_elbo

BATCH, HEIGHT, WIDTH, D_HIDDEN, D_LATENT, STEPS, READ, WRITE = 2, 11, 7, 13, 5, 3, 2, 3


def model(*, has_attention=True):
    torch.manual_seed(0)
    made = Draw(
        height=HEIGHT,
        width=WIDTH,
        d_hidden=D_HIDDEN,
        d_latent=D_LATENT,
        n_steps=STEPS,
        read_size=READ,
        write_size=WRITE,
        has_attention=has_attention,
    )
    for weight in made.parameters():  # nothing at zero, so that everything matters
        weight.data += 0.1 * torch.randn_like(weight)
    return made


@pytest.fixture
def images():
    return (torch.rand(BATCH, HEIGHT, WIDTH) < 0.3).float()


def filters(parameters, n_pixels, size, *, axis):
    """Equations 19 to 26 for one image and one axis, in loops."""
    g, log_variance, log_stride = parameters[axis], parameters[2], parameters[3]
    stride = (max(HEIGHT, WIDTH) - 1) / (size - 1) * log_stride.exp()
    rows = []
    for i in range(size):
        mean = ((g + 1) * n_pixels - 1) / 2 + (i - size / 2 + 0.5) * stride
        values = torch.stack(
            [(-((a - mean) ** 2) / (2 * log_variance.exp())).exp() for a in range(n_pixels)]
        )
        rows.append(values / values.sum())
    return torch.stack(rows)


def drawn_by_equations(draw, image, noise):
    """One image, one equation a line; the noise of each step is given."""
    canvas = draw.first_canvas
    (enc, enc_cell), (dec, dec_cell) = (
        [x[0] for x in cell.start(1)] for cell in (draw.encoder, draw.decoder)
    )
    costs = []
    for step in range(STEPS):
        wrong = image - torch.sigmoid(canvas)
        where = draw.read_place.parameters_of(dec)
        f_y, f_x = filters(where, HEIGHT, READ, axis=1), filters(where, WIDTH, READ, axis=0)
        seen = where[4].exp() * torch.stack([f_y @ image @ f_x.T, f_y @ wrong @ f_x.T])
        enc, enc_cell = lstm(draw.encoder, torch.cat([seen.flatten(), dec]), enc, enc_cell)
        mean, log_sigma = draw.latent(enc).chunk(2)
        costs.append(kl_divergence(Normal(mean, log_sigma.exp()), Normal(0.0, 1.0)).sum())
        dec, dec_cell = lstm(draw.decoder, mean + log_sigma.exp() * noise[step], dec, dec_cell)
        where = draw.write_place.parameters_of(dec)
        f_y, f_x = filters(where, HEIGHT, WRITE, axis=1), filters(where, WIDTH, WRITE, axis=0)
        patch = draw.patch(dec).view(WRITE, WRITE)
        canvas = canvas + f_y.T @ patch @ f_x / where[4].exp()
    return canvas, torch.stack(costs)


def lstm(start, x, hidden, cell):
    kernel = start.cell.kernel
    gates = kernel.weight_ih_l0 @ x + kernel.weight_hh_l0 @ hidden
    i, f, g, o = (gates + kernel.bias_ih_l0 + kernel.bias_hh_l0).chunk(4)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def test_agrees_with_its_equations(images):
    draw = model()
    torch.manual_seed(1)
    drawn = draw(images)
    torch.manual_seed(1)
    noise = torch.randn(STEPS, BATCH, D_LATENT)
    for row in range(BATCH):
        canvas, costs = drawn_by_equations(draw, images[row], noise[:, row])
        torch.testing.assert_close(drawn.canvases[-1][row], canvas, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(drawn.kl[row], costs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_attention", [True, False])
def test_it_learns_to_draw_two_pictures(has_attention, images):
    draw = model(has_attention=has_attention)
    optimiser = torch.optim.Adam(draw.parameters(), lr=0.03)
    bounds = []
    for _ in range(100):
        drawn = draw(images)
        loss = bernoulli_elbo(drawn.canvases[-1], images, kl=drawn.kl).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        bounds.append(loss.item())
    assert bounds[-1] < 0.7 * bounds[0]


def test_every_weight_has_a_gradient(images):
    draw = model()
    drawn = draw(images)
    bernoulli_elbo(drawn.canvases[-1], images, kl=drawn.kl).loss.backward()
    still = [
        name
        for name, weight in draw.named_parameters()
        if weight.requires_grad and not weight.grad.any()
    ]
    assert not still


def test_without_attention_it_says_where_nothing_was(images):
    drawn = model(has_attention=False)(images)
    assert drawn.reads == drawn.writes == (None,) * STEPS
    assert drawn.canvases[0].shape == images.shape


def test_a_sample_is_drawn_without_reading_and_differs_from_the_next():
    draw = model()
    drawn = draw.sample(2)
    assert drawn.reads == (None,) * STEPS and len(drawn.writes) == len(drawn.canvases) == STEPS
    assert (drawn.kl == 0).all()
    assert not torch.equal(*drawn.canvases[-1])


def test_images_of_another_size_are_refused():
    with pytest.raises(UsageError, match="11 x 7"):
        model()(torch.zeros(2, 7, 11))
