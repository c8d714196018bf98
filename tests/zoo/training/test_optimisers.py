"""torch's optimisers: which weights decay, which learn more slowly, what each is asked for."""

import pytest
import torch
from torch import nn

from saccade.errors import TrainingError
from saccade.zoo.training.optim import make_optimiser, set_rate
from saccade.zoo.training.settings import TrainConfig


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


def test_muon_turns_a_matrix_by_an_orthogonal_step_and_adam_moves_the_rest():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 4))
    table, matrix, bias = (weight.detach().clone() for weight in model.parameters())
    config = TrainConfig(optimiser="muon", learning_rate=0.01)
    optimiser = make_optimiser(model, config)
    model(torch.arange(7)).square().sum().backward()
    gradient = model[1].weight.grad.clone()
    optimiser.step()
    step = (model[1].weight.detach() - matrix) / (0.01 * 0.2 * 6**0.5)
    left, _, right = torch.linalg.svd(gradient, full_matrices=False)
    # By Newton and Schulz the singular values come to about one, and the directions stay.
    turned = left.T @ -step @ right.T
    assert ((turned.diag() > 0.6) & (turned.diag() < 1.3)).all(), turned.diag()
    assert (turned - turned.diag().diag()).abs().max() < 0.05
    for before, now in ((table, model[0].weight), (bias, model[1].bias)):
        moved = (now - before).abs()  # Adam's first step is the rate, wherever there is a gradient
        torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=1e-6)


def test_muon_has_one_rate_and_decays_matrices_only(model):
    config = TrainConfig(optimiser="muon", weight_decay=0.1)
    optimiser = make_optimiser(model, config, rates={"2.": 0.5})
    set_rate(optimiser, 0.2)
    rates, decays = (
        {id(w): g[field] for g in optimiser.param_groups for w in g["params"]}
        for field in ("lr", "weight_decay")
    )
    for name, weight in model.named_parameters():
        assert rates[id(weight)] == (0.1 if name.startswith("2.") else 0.2), name
        assert decays[id(weight)] == (0.1 if weight.dim() == 2 else 0.0), name
    before = [weight.detach().clone() for weight in model.parameters()]
    set_rate(optimiser, 0.0)
    one_step(model, optimiser)
    for weight, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(weight, old)


def test_muon_goes_without_matrices_and_without_all_else():
    for model in (nn.LayerNorm(3), nn.Linear(3, 2, bias=False)):
        before = model.weight.detach().clone()
        one_step(model, make_optimiser(model, TrainConfig(optimiser="muon")))
        assert not torch.equal(model.weight, before)


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
