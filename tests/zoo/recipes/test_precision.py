"""Where products are rounded, systems with a gradient by hand still learn the same."""

import pytest
import torch

from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.training.settings import with_settings

# One for each operation whose gradient is written by hand, and those that mix both kinds.
# Beside each the data set that it is trained on; the others make their own.
NAMES = {
    "bahdanau-multi30k": "multi30k",
    "caption-scenes-soft": "mnist",
    "dmn-babi-10k": "babi",
    "dnc-recall": None,
    "hard-attention": "multi30k",
    "las-digits-location": "fsdd",
    "ntm-copy": None,
}
CHANGES = {"dnc-recall": ["batch=16"], "ntm-copy": ["batch=16"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_and_its_gradient_are_the_same_to_a_few_bits(name, data_with):
    recipe, needed = find_recipe(name), NAMES[name]
    data = data_with(needed) if needed else None
    torch.manual_seed(0)
    job = recipe.build(with_settings(recipe.settings, CHANGES.get(name, [])), data)
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
