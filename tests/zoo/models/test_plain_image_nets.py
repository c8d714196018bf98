"""The controls without attention: what they compute, and what they refuse."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.models.plain_image_nets import ConvolutionalNet, FullyConnectedNet

BATCH, SIZE, CLASSES = 2, (17, 23), 5


def test_filters_see_patches_five_pixels_apart():
    torch.manual_seed(0)
    net = ConvolutionalNet(size=SIZE, n_classes=CLASSES, d_hidden=7, n_filters=3)
    images = torch.rand(BATCH, *SIZE)
    patches = images.unfold(1, 10, 5).unfold(2, 10, 5)  # [batch, row, column, 10, 10]
    found = torch.einsum("brcij,fij->bfrc", patches, net.filters.weight[:, 0])
    found = torch.relu(found + net.filters.bias[:, None, None]).flatten(1)
    expected = net.answer(torch.relu(net.hidden(found)))
    torch.testing.assert_close(net(images), expected)


def test_every_pixel_counts_for_the_fully_connected_net():
    torch.manual_seed(0)
    images = torch.rand(BATCH, *SIZE, requires_grad=True)
    FullyConnectedNet(size=SIZE, n_classes=CLASSES)(images).square().sum().backward()
    assert (images.grad != 0).all()


@pytest.mark.parametrize("net", [FullyConnectedNet, ConvolutionalNet])
def test_another_size_is_refused(net):
    with pytest.raises(UsageError, match="expected images of 17 x 23 pixels, got 17 x 17"):
        net(size=SIZE, n_classes=CLASSES)(torch.zeros(BATCH, 17, 17))


def test_a_filter_larger_than_the_image_is_refused():
    with pytest.raises(UsageError, match="a filter of 10 pixels is larger than the image of 9 x 9"):
        ConvolutionalNet(size=(9, 9), n_classes=2)
