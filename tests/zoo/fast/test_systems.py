"""Whole systems in both forms: the same loss and gradient, and no hand-written one in the plain."""

import pytest
import torch

from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.training.settings import with_settings


@pytest.fixture
def check(assert_forms_agree):
    def check(name, *changes, data):
        recipe = find_recipe(name)
        torch.manual_seed(0)
        job = recipe.build(with_settings(recipe.settings, list(changes)), data)
        batch = next(iter(job.batches_of(0, 0)))
        model = job.model.eval()  # dropout draws other numbers in its plain form
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        assert_forms_agree(lambda *_: job.loss(model, batch).loss, weights, atol=1e-5, rtol=1e-3)

    return check


@pytest.mark.parametrize("name", ["adding-unitary", "dnc-recall", "ntm-copy"])
def test_a_network_with_a_long_memory_learns_alike_in_both_forms(name, check, tmp_path):
    check(name, "batch=16", data=tmp_path)


@pytest.mark.parametrize(
    ("name", "data_set"),
    [("caption-scenes-soft", "mnist"), ("memn2n-babi", "babi"), ("ram-mnist", "mnist")],
)
def test_a_system_that_looks_at_data_learns_alike_in_both_forms(name, data_set, check, data_with):
    check(name, data=data_with(data_set))
