"""torch's optimisers: which weights decay, which learn more slowly, what each is asked for."""

import pytest
import torch
from torch import nn

from saccade.errors import TrainingError
from saccade.training.config import TrainConfig
from saccade.training.optimisers import make_optimiser, set_rate


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2))


def one_step(model, optimiser, seed=1):
    torch.manual_seed(seed)
    optimiser.zero_grad()
    model(torch.randn(7, 3)).square().sum().backward()
    optimiser.step()


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("adam", lambda w: torch.optim.Adam(w, lr=0.01, betas=(0.8, 0.9))),
        ("adamw", lambda w: torch.optim.AdamW(w, lr=0.01, betas=(0.8, 0.9), weight_decay=0)),
        ("sgd", lambda w: torch.optim.SGD(w, lr=0.01, momentum=0.7)),
        ("rmsprop", lambda w: torch.optim.RMSprop(w, lr=0.01, momentum=0.7)),
    ],
)
def test_each_is_torchs_plain_one(model, name, plain):
    import copy

    other = copy.deepcopy(model)
    config = TrainConfig(optimiser=name, learning_rate=0.01, betas=(0.8, 0.9), momentum=0.7)
    ours, theirs = make_optimiser(model, config), plain(other.parameters())
    for seed in range(3):
        one_step(model, ours, seed)
        one_step(other, theirs, seed)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its)


def test_only_matrices_decay(model):
    optimiser = make_optimiser(model, TrainConfig(optimiser="adamw", weight_decay=0.1))
    decays = {id(w): g["weight_decay"] for g in optimiser.param_groups for w in g["params"]}
    for name, weight in model.named_parameters():
        assert decays[id(weight)] == (0.1 if name in ("0.weight", "2.weight") else 0.0), name


def test_parts_named_by_their_beginning_learn_at_their_own_rate(model):
    optimiser = make_optimiser(model, TrainConfig(), rates={"2.": 0.25})
    set_rate(optimiser, 0.8)
    rates = {id(w): g["lr"] for g in optimiser.param_groups for w in g["params"]}
    for name, weight in model.named_parameters():
        assert rates[id(weight)] == (0.2 if name.startswith("2.") else 0.8), name


def test_frozen_weights_are_left_out_and_nothing_to_train_is_refused(model):
    model[0].requires_grad_(False)
    held = {id(w) for g in make_optimiser(model, TrainConfig()).param_groups for w in g["params"]}
    assert not held & {id(w) for w in model[0].parameters()} and len(held) == 4
    with pytest.raises(TrainingError, match="Sequential has no weights that could be trained"):
        make_optimiser(model.requires_grad_(False), TrainConfig())
