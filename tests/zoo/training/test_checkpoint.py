"""What a checkpoint holds comes back as it was, and into nothing that it does not fit."""

import copy
import json

import pytest
import torch
from torch import nn

from saccade.errors import StoreError, TrainingError
from saccade.store.schema import with_digest, without_digest
from saccade.zoo.training.checkpoint import (
    Checkpoint,
    TrainState,
    load_checkpoint,
    load_optimiser,
    load_weights,
    optimiser_tensors,
    save_checkpoint,
)
from saccade.zoo.training.optim import make_optimiser
from saccade.zoo.training.settings import TrainConfig


def stepped(model, optimiser, n):
    for seed in range(n):
        torch.manual_seed(seed)
        optimiser.zero_grad()
        model(torch.randn(7, 3)).square().sum().backward()
        optimiser.step()


@pytest.fixture
def saved(tmp_path):
    state = TrainState(step=3, best={"nll": 0.1 + 0.2}, stage_scores=[{"nll": 1 / 3}])
    parts = {"weights": {"w": torch.arange(3.0)}, "optimiser": {}, "carried": {}}
    window = {"loss": torch.tensor([1 / 3, 2.0])}
    random = {"0.torch": torch.arange(5, dtype=torch.uint8), "0.gauss": torch.tensor(0.5)}
    save_checkpoint(tmp_path / "c", Checkpoint(state=state, random=random, window=window, **parts))
    return tmp_path / "c"


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "muon"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimiser_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(name, momentum):
    torch.manual_seed(0)
    config = TrainConfig(optimiser=name, momentum=momentum, learning_rate=0.01, weight_decay=0.1)
    looking = [nn.Unflatten(1, (2, 5, 5)), nn.Conv2d(2, 3, 3), nn.Flatten()]
    model = nn.Sequential(nn.Linear(3, 50), *looking, nn.Linear(27, 2))
    model.to(memory_format=torch.channels_last)  # as training has it
    optimiser = make_optimiser(model, config)
    stepped(model, optimiser, 3)
    other = copy.deepcopy(model)
    again = make_optimiser(other, config)
    # A file has lost how its tensors lay in memory.
    load_optimiser(
        again,
        {
            k: v.clone(memory_format=torch.contiguous_format)
            for k, v in optimiser_tensors(optimiser).items()
        },
    )
    stepped(model, optimiser, 2)
    stepped(other, again, 2)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_everything_comes_back_as_it_was(saved):
    found = load_checkpoint(saved)
    assert found.state == TrainState(step=3, best={"nll": 0.1 + 0.2}, stage_scores=[{"nll": 1 / 3}])
    assert torch.equal(found.weights["w"], torch.arange(3.0)) and found.optimiser == {}
    assert found.random["0.torch"].dtype == torch.uint8 and found.random["0.gauss"].shape == ()
    assert found.window["loss"].tolist() == torch.tensor([1 / 3, 2.0]).tolist()


def test_where_there_is_none_there_is_none(tmp_path):
    assert load_checkpoint(tmp_path / "nothing") is None


def test_a_damaged_or_foreign_one_is_refused(saved):
    manifest = json.loads((saved / "manifest.json").read_text())
    state = without_digest(manifest["state"], where="")
    manifest["state"] = with_digest({**state, "mood": "good"})
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TrainingError, match=r"was written by another version of saccade: .*mood"):
        load_checkpoint(saved)
    del manifest["state"]["mood"]
    (saved / "manifest.json").write_text(json.dumps(manifest))
    (saved / "weights.safetensors").write_bytes(b"short")
    with pytest.raises(StoreError, match="is truncated or changed"):
        load_checkpoint(saved)


def test_weights_of_another_model_are_refused_by_name(tmp_path):
    weights = nn.Linear(3, 5).state_dict()
    with pytest.raises(TrainingError) as refused:
        load_weights(nn.Linear(3, 7), weights, source=tmp_path)
    assert f"the weights in {tmp_path} are of another model: weight is (5, 3)" in str(refused.value)
    with pytest.raises(
        TrainingError, match=r"no 0.weight; no 0.bias; weight is unknown; and 1 more"
    ):
        load_weights(nn.Sequential(nn.Linear(3, 5)), weights, source=tmp_path)
