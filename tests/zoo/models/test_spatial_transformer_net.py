"""The spatial transformer network: it looks at everything first, and learns where from classes."""

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.models.spatial_transformer_net import SpatialTransformerNet
from saccade.zoo.sensors.spatial_transformer import warp

BATCH, HEIGHT, WIDTH, CLASSES, SIDE = 2, 20, 24, 5, 12


def model(*, is_multi=False):
    torch.manual_seed(0)
    return SpatialTransformerNet(
        size=(HEIGHT, WIDTH),
        n_classes=CLASSES,
        side=SIDE,
        channels=(3, 7),
        d_hidden=11,
        is_multi=is_multi,
    )


@pytest.mark.parametrize("is_multi", [False, True])
def test_it_begins_with_the_whole_image(is_multi):
    images = torch.rand(BATCH, HEIGHT, WIDTH)
    found = model(is_multi=is_multi).look(images)
    torch.testing.assert_close(found.theta, torch.eye(2, 3).expand(BATCH, 2, 3))
    whole = warp(images[:, None], torch.eye(2, 3).expand(BATCH, 2, 3), height=SIDE, width=SIDE)
    torch.testing.assert_close(found.window, whole[:, 0])


def test_with_one_transformer_it_is_convolutions_over_the_window():
    net, images = model(), torch.rand(BATCH, HEIGHT, WIDTH)
    features = net.look(images).window[:, None]
    for convolution in net.convolutions:
        features = functional.relu(functional.max_pool2d(convolution(features), 2))
    expected = net.answer(net.hidden(features.flatten(1)).relu())
    torch.testing.assert_close(net(images), expected)


def test_an_inner_transformer_that_shows_all_changes_nothing():
    """Inner transformers begin as the identity, so both nets with the same weights agree."""
    single, multi = model(), model(is_multi=True)
    assert len(multi.inner) == 1 and not single.inner
    multi.load_state_dict(single.state_dict(), strict=False)
    images = torch.rand(BATCH, HEIGHT, WIDTH)
    torch.testing.assert_close(multi(images), single(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_multi", [False, True])
def test_the_class_alone_teaches_where_to_look(is_multi):
    net, images = model(is_multi=is_multi), torch.rand(BATCH, HEIGHT, WIDTH)
    functional.cross_entropy(net(images), torch.tensor([0, 1])).backward()
    for localisation in (net.localisation, *net.inner):
        assert localisation.theta.bias.grad.abs().sum() > 0


def test_images_of_another_size_are_refused():
    with pytest.raises(UsageError, match="20 x 24"):
        model()(torch.zeros(2, 24, 20))
