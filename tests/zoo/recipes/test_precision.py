"""Where products are rounded, systems with a gradient by hand still learn the same."""

import pytest
import torch

from saccade.zoo.recipes.registry import find_recipe
from saccade.zoo.recipes.settings import with_settings

# One for each operation whose gradient is written by hand, and those that mix both kinds.
NAMES = {
    "bahdanau-multi30k": [],
    "caption-scenes-soft": [],
    "dmn-babi-10k": [],
    "dnc-recall": ["batch=16"],
    "hard-attention": [],
    "las-digits-location": [],
    "ntm-copy": ["batch=16"],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_and_its_gradient_are_the_same_to_a_few_bits(name, data_dir):
    recipe = find_recipe(name)
    torch.manual_seed(0)
    job = recipe.build(with_settings(recipe.settings, NAMES[name]), data_dir)
    batch = next(iter(job.batches_of(0, 0)))
    weights = [weight for weight in job.model.parameters() if weight.requires_grad]

    def slopes(is_rounded):
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_rounded):
            loss = job.loss(job.model.eval(), batch).loss
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        return loss.item(), torch.cat([each.flatten() for each in found if each is not None])

    (exact, along), (rounded, beside) = slopes(is_rounded=False), slopes(is_rounded=True)
    assert rounded != exact and rounded == pytest.approx(exact, rel=0.02)
    assert torch.cosine_similarity(along, beside, dim=0) > 0.97
