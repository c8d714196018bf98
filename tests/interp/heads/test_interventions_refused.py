"""A change that cannot be made, or changed nothing, says so in one line."""

from __future__ import annotations

import pytest
import torch

from saccade.errors import InterventionError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import (
    Ablate,
    InjectHead,
    InjectResidual,
    Patch,
    Scale,
    intervene,
    mean_z,
)

ONES = torch.ones(10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Scale(1, 2, 1.0), "a factor of 1 changes nothing"),
        (Scale(1, 2, float("nan")), "the factor is not finite: nan"),
        (InjectHead(1, 2, ONES, 0.0), "a strength of 0 changes nothing"),
        (InjectResidual(1, torch.ones(48), float("inf")), "the strength is not finite: inf"),
        (InjectResidual(1, torch.full((48,), float("nan"))), "values that are not finite"),
        (Ablate(1, 6), "no head 6 in layer 1: it has heads 0-5"),
        (Ablate(1, -1), "no head -1 in layer 1"),
        (Ablate(7, 0), "no layer 7: llama has heads in layers 0-2"),
        (Ablate(1, 2, by="mean"), "ablation by mean takes a value, got none"),
        (Ablate(1, 2, value=ONES), "ablation by zero takes no value, got one"),
        (Patch(1, 2, torch.ones(11)), r"expected a vector of d_head = 10, got a shape of \(11,\)"),
        (InjectHead(1, 2, torch.ones(11)), "expected a vector of d_model = 48 or d_head = 10"),
        (InjectResidual(1, ONES), "expected a vector of d_model = 48"),
        ([], "there is no change to make"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_before_the_model_runs(llama, change, message):
    with pytest.raises(InterventionError, match=message) as error, intervene(llama, change):
        pytest.fail("the block was entered")
    assert error.value.hint and error.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Ablate(1, 2, positions=[3, 11]), "at layer 1 head 2 never reached position 11"),
        (Ablate(1, 2, positions=[-12]), "never reached position -12: no text was that long"),
        (InjectResidual(1, torch.zeros(48)), "InjectResidual at layer 1 changed nothing"),
        (Ablate(1, 2, rows=[2]), "changed nothing: its value equals the activation"),
    ],
)
def test_a_change_that_changed_nothing_raises_on_leaving(llama, ids, change, message):
    with pytest.raises(InterventionError, match=message), intervene(llama, change):
        capture(llama, ids)


def test_patching_a_text_into_itself_is_noticed(llama, ids):
    z = capture(llama, ids).z[1][:, :, 2]
    with (
        pytest.raises(InterventionError, match="changed nothing"),
        intervene(llama, Patch(1, 2, z)),
    ):
        capture(llama, ids)


def test_a_block_in_which_the_model_never_runs_is_noticed(llama):
    with (
        pytest.raises(InterventionError, match="the model did not run"),
        intervene(llama, Ablate(1, 2)),
    ):
        pass


def test_one_idle_change_among_others_is_named(llama, ids):
    changes = [Ablate(0, 1), Ablate(1, 2, positions=[50]), Ablate(2, 3)]
    with pytest.raises(InterventionError, match="layer 1 head 2 never"), intervene(llama, changes):
        capture(llama, ids)


def test_an_error_inside_is_not_hidden_by_a_complaint(llama):
    def fail():
        with intervene(llama, Ablate(1, 2)):
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()


def test_a_mask_that_does_not_cover_the_cache_is_refused(llama, ids):
    def run():
        with intervene(llama, Ablate(1, 2, positions=[3])), torch.no_grad():
            cache = llama.hf(input_ids=ids, use_cache=True).past_key_values
            mask = torch.ones(2, 1, dtype=torch.long)
            llama.hf(input_ids=ids[:, :1], attention_mask=mask, past_key_values=cache)

    with pytest.raises(InterventionError, match=r"expected a mask of 2 texts x 12 tokens"):
        run()


def test_values_for_another_number_of_texts_are_refused(llama, ids):
    def run():
        with intervene(llama, Patch(1, 2, torch.ones(3, 11, 10))):
            capture(llama, ids)

    with pytest.raises(InterventionError, match="a value for each text: expected 2, got 3"):
        run()


def test_there_is_no_mean_over_no_text(llama):
    with pytest.raises(InterventionError, match="no text to average over"):
        mean_z(llama, [])
