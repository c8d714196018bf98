"""EDRAM: glimpses are warps, the context tells where and not what, and both losses teach."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.models.edram import Edram, Glimpsed, edram_loss
from saccade.zoo.sensors.spatial_transformer import warp, window_theta

BATCH, SIZE, CLASSES, GLIMPSES, SIDE = 2, 31, 5, 3, 10


def model():
    torch.manual_seed(0)
    made = Edram(
        size=(SIZE, SIZE),
        n_classes=CLASSES,
        n_glimpses=GLIMPSES,
        side=SIDE,
        channels=(3,),
        d_hidden=7,
    )
    made.emission.weight.data.normal_(std=0.3)
    return made


def test_each_glimpse_is_the_warp_it_says():
    images = torch.rand(BATCH, SIZE, SIZE)
    looked = model().look(images)
    for step, patch in enumerate(looked.patches):
        seen = warp(images[:, None], looked.thetas[:, step], height=SIDE, width=SIDE)
        torch.testing.assert_close(patch, seen[:, 0])


def test_the_context_reaches_the_first_answer_only_through_where_it_looks():
    edram, images = model(), torch.rand(BATCH, SIZE, SIZE)
    edram.emission.weight.data.zero_()  # it looks where it always does
    before = edram.look(images).logits
    for weight in edram.context.parameters():
        weight.data += 1.0
    torch.testing.assert_close(edram.look(images).logits, before)


def test_the_loss_is_a_mean_over_glimpses_of_both_parts():
    logits, thetas = torch.randn(BATCH, GLIMPSES, CLASSES), torch.randn(BATCH, GLIMPSES, 2, 3)
    labels, wanted = torch.tensor([1, 3]), torch.randn(BATCH, 2, 3)
    found = edram_loss(Glimpsed(logits, thetas, ()), labels, theta=wanted, place_weight=0.7)
    total = 0.0
    for b in range(BATCH):
        for j in range(GLIMPSES):
            total -= logits[b, j].log_softmax(-1)[labels[b]].item()
            for k in range(6):
                off = thetas[b, j].flatten()[k] - wanted[b].flatten()[k]
                total += 0.7 * off.item() ** 2
    assert found.loss.item() == pytest.approx(total / (BATCH * GLIMPSES), rel=1e-5)
    torch.testing.assert_close(found.loss.detach(), found.named + 0.7 * found.placed)


def test_it_learns_to_look_at_a_square_from_being_told_where_it_is():
    edram = model()
    optimiser = torch.optim.Adam(edram.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    placed = []
    for _ in range(80):
        corners = torch.randint(0, SIZE - 9, (16, 2), generator=generator)
        images = torch.zeros(16, SIZE, SIZE)
        for row, (top, left) in enumerate(corners.tolist()):
            images[row, top : top + 9, left : left + 9] = 1
        centres = (2 * corners.flip(1) + 9) / SIZE - 1
        theta = window_theta(torch.cat([centres, torch.full((16, 2), 9 / SIZE)], dim=1))
        labels = (corners[:, 0] > SIZE // 2 - 4).long()
        found = edram_loss(edram.look(images), labels, theta=theta, place_weight=1.0)
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
        placed.append(found.placed.item())
    assert placed[-1] < 0.3 * placed[0]


def test_as_much_of_the_gradient_goes_through_the_sampler_as_it_is_told():
    images = torch.rand(BATCH, SIZE, SIZE)
    found = []
    for share in (1.0, 0.25, 0.0):
        edram = model()
        edram.n_glimpses, edram.sampler_gradient = 1, share
        edram.look(images).logits.square().sum().backward()
        found.append(edram.emission.bias.grad)
    assert found[0].abs().min() > 0
    torch.testing.assert_close(found, [found[0], 0.25 * found[0], 0 * found[0]])


def test_images_of_another_size_are_refused():
    with pytest.raises(UsageError, match="31 x 31"):
        model()(torch.zeros(2, SIZE, SIZE + 1))
