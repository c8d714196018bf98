"""The small encoder: its grid, what a cell sees, and that it is told where it is."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.models.image_encoders import ConvolutionalEncoder


def test_a_cell_depends_on_the_pixels_around_it_and_on_no_others():
    torch.manual_seed(0)
    encoder = ConvolutionalEncoder(n_colours=1, channels=(3, 5, 5, 7, 11)).eval()
    image = torch.rand(1, 1, 88, 88, requires_grad=True)
    encoder(image)[0, :, 5, 5].sum().backward()
    rows, columns = image.grad[0, 0].nonzero().T
    # 49 x 49 pixels around the upper left corner of the cell's own 8 x 8: see the docstring.
    for along in (rows, columns):
        assert along.min() >= 40 - 24 and along.max() <= 40 + 24
        assert along.max() - along.min() > 28  # a whole digit


def test_the_same_thing_at_two_places_is_told_apart_by_the_coordinates_alone():
    torch.manual_seed(0)
    encoder = ConvolutionalEncoder(n_colours=1, channels=(3, 5, 5, 7, 11)).eval()
    blank = torch.zeros(1, 1, 160, 160)
    before = encoder.layers(blank)
    torch.testing.assert_close(before[..., 8, 8], before[..., 12, 11])
    after = encoder(blank)
    assert not torch.allclose(after[..., 8, 8], after[..., 12, 11])


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="a stride each, got 2 and 3 strides"):
        ConvolutionalEncoder(n_colours=1, channels=(2, 3), strides=(1, 1, 1))
    with pytest.raises(UsageError, match="expected images of 3 colours, got 1"):
        ConvolutionalEncoder(n_colours=3, channels=(2, 3), strides=(1, 1))(torch.zeros(1, 1, 9, 9))
