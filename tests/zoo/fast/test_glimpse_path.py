"""RAM's path in place, with its gradient by hand, against the paper's equations on torch's tape."""

import pytest
import torch

from saccade.zoo.models.ram import Ram
from saccade.zoo.sensors.retina import Retina

BATCH, SAMPLES, GLIMPSES, SIZE, CLASSES = 3, 2, 5, (19, 23), 7


def make(**changes) -> Ram:
    torch.manual_seed(0)
    retina = Retina(size=4, n_scales=2)
    sizes = {"n_glimpses": GLIMPSES, "d_glimpse": 11, "d_hidden": 13}
    return Ram(size=SIZE, n_classes=CLASSES, retina=retina, **sizes, **changes).double()


@pytest.fixture
def images():
    return torch.rand(BATCH, *SIZE, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("is_drawn", [False, True], ids=["at the means", "drawn"])
@pytest.mark.parametrize("policy", ["learnt", "random", "central"])
def test_both_forms_look_and_learn_alike(images, policy, is_drawn, assert_forms_agree):
    model = make(policy=policy)

    def look(*_):
        looked = model.look(images, n_samples=SAMPLES, is_drawn=is_drawn)
        return tuple(each for each in looked if each.numel())

    assert_forms_agree(look, [*model.parameters()])


def test_the_path_has_a_gradient_at_every_glimpse_not_at_the_last_alone(images, assert_forms_agree):
    model = make()
    for glimpse in range(GLIMPSES):
        assert_forms_agree(
            lambda *_, t=glimpse: model.look(images, is_drawn=False).logits[:, :, t],
            [*model.parameters()],
        )
