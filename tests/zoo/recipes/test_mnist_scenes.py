"""What recipes on images share: images come from the folder that is given, and go to the model."""

import pytest
import torch
from torch import nn

from saccade.errors import SaccadeError
from saccade.zoo.recipes.mnist_scenes import error_of
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.mnist import ImageBatch
from saccade.zoo.training.settings import with_settings


@pytest.mark.parametrize(
    "name",
    ["ram-mnist", "dram-pairs", "diffram-cluttered100", "edram-cluttered100", "stn-cluttered60"],
)
def test_a_trace_reads_the_images_of_the_folder_it_is_given(
    name, little_mnist, tmp_path, monkeypatch
):
    recipe = find_recipe(name)
    settings = with_settings(recipe.settings, ["d_hidden=8"])
    model = recipe.restore(settings, {}).eval()
    run = TrainedRun(recipe=recipe, settings=settings, kept={}, models=(model,))
    (usual,) = recipe.trace(run, "3")
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    with pytest.raises(SaccadeError):
        recipe.trace(run, "3")
    (given,) = recipe.trace(run, "3", data=little_mnist)
    assert torch.equal(given.image, usual.image) and given.steps == usual.steps


def test_images_go_to_the_device_of_the_model_and_answers_come_back():
    model = nn.Linear(2, 2, device="meta")
    batch = ImageBatch(torch.zeros(4, 2, 2), torch.tensor([0, 1, 1, 1]), torch.zeros(4, 1, 4))
    seen = []

    def answer(images):
        seen.append(images.device.type)
        return torch.eye(2)[[0, 0, 1, 1]]

    assert error_of(answer, [batch], model=model) == 25.0
    assert error_of(answer, [batch]) == 25.0
    assert seen == ["meta", "cpu"]
