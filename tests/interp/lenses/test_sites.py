"""What each site holds, in row order."""

import sys
from pathlib import Path

import pytest
import torch

from saccade.errors import UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.model import wrap_model
from saccade.interp.heads.residual_path import direct_logits
from saccade.interp.lenses.lens import activation_at, needs_residual

sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))

from families import VOCAB, tiny

BATCH, LENGTH, LAYER = 2, 7, 1


@pytest.fixture(scope="module")
def model():
    return wrap_model(tiny("llama"), None, name="llama")


@pytest.fixture(scope="module")
def captured(model):
    ids = torch.randint(3, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(5))
    return capture(model, ids, residual=True)


def test_the_head_site_is_z_row_by_row(model, captured):
    activation = activation_at(model, captured, LAYER, "head")
    at = model.layer(LAYER)
    assert activation.shape == (BATCH * LENGTH, at.n_heads, at.d_head)
    for row in range(BATCH):
        for position in range(LENGTH):
            assert torch.equal(
                activation[row * LENGTH + position], captured.z[LAYER][row, position]
            )


def test_the_residual_site_is_the_stream_as_a_single_head(model, captured):
    activation = activation_at(model, captured, LAYER, "residual")
    assert activation.shape == (BATCH * LENGTH, 1, model.d_model)
    assert torch.equal(activation[LENGTH + 3, 0], captured.residual[LAYER][1, 3])


def test_the_direct_site_gives_the_direct_logits_of_a_token(model, captured):
    tokens = torch.full((BATCH, LENGTH), 17)
    activation = activation_at(model, captured, LAYER, "direct")
    logits = activation @ model.unembedding.weight[17] * model.unembedding.scale
    expected = direct_logits(model, captured, LAYER, tokens).flatten(0, 1)
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("site", ["head", "residual", "direct"])
def test_chosen_positions_are_those_of_the_whole(model, captured, site):
    whole = activation_at(model, captured, LAYER, site).unflatten(0, (BATCH, LENGTH))
    some = activation_at(model, captured, LAYER, site, positions=[-1, 2]).unflatten(0, (BATCH, 2))
    torch.testing.assert_close(some, whole[:, [-1, 2]])


@pytest.mark.parametrize("site", ["head", "residual", "direct"])
def test_what_a_site_needs_is_enough_to_gather_it(model, site):
    ids = torch.arange(3, 3 + LENGTH).expand(BATCH, -1)
    captured = capture(model, ids, layers=[LAYER], residual=needs_residual(site))
    assert len(activation_at(model, captured, LAYER, site)) == BATCH * LENGTH


def test_a_capture_without_the_stream_is_refused(model):
    captured = capture(model, torch.arange(3, 10).expand(BATCH, -1), layers=[LAYER])
    with pytest.raises(UsageError, match="does not hold the residual site of layer 1") as caught:
        activation_at(model, captured, LAYER, "residual")
    assert "residual=True" in caught.value.hint
    with pytest.raises(UsageError, match="the head site of layer 0"):
        activation_at(model, captured, 0, "head")
