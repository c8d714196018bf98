"""Nets that somebody else has trained: kept as they are, and refused where they give no maps."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from saccade.errors import MissingPackageError, ModelError
from saccade.store.folder import save_tensors
from saccade.zoo.models.image_encoders import MEANS, SPREADS, Backbone, open_backbone


class TimmLike(nn.Module):
    """A net with the two doors that timm's have."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 4, stride=4)
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Linear(5, 1000)

    def forward_features(self, x):
        return self.norm(self.stem(x))

    def forward(self, x):
        return self.head(self.forward_features(x).mean((2, 3)))


def test_maps_are_those_of_the_net_for_normalised_colours():
    torch.manual_seed(0)
    net, images = TimmLike(), torch.rand(2, 3, 12, 8)
    found = Backbone(net)(images)
    normal = (images - torch.tensor(MEANS).view(3, 1, 1)) / torch.tensor(SPREADS).view(3, 1, 1)
    torch.testing.assert_close(found, net.eval().forward_features(normal))
    assert found.shape == (2, 5, 3, 2)


def test_nothing_of_it_is_trained_and_its_statistics_stay():
    backbone = Backbone(TimmLike())
    whole = nn.Sequential(backbone, nn.Conv2d(5, 1, 1)).train()
    before = backbone.body.norm.running_mean.clone()
    whole(torch.rand(2, 3, 12, 12)).sum().backward()
    assert torch.equal(before, backbone.body.norm.running_mean)
    assert not backbone.body.norm.training
    assert all(weight.grad is None for weight in backbone.parameters())


def test_of_several_maps_the_last_is_taken_and_what_gives_none_is_refused():
    class Pyramid(nn.Module):
        def forward(self, x):
            return [x[:, :, ::2, ::2], x[:, :2, ::8, ::8]]

    assert Backbone(Pyramid()).d_annotation == 2
    with pytest.raises(ModelError, match=r"expected feature maps .*, got \(1, 12288\)"):
        Backbone(nn.Flatten())


def test_a_net_of_timm_is_opened_with_the_users_weights(tmp_path, monkeypatch):
    def create_model(name, pretrained):
        assert not pretrained
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        return TimmLike()

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    trained = TimmLike()
    save_tensors(tmp_path / "a.safetensors", trained.state_dict())
    opened = open_backbone("tiny", weights=tmp_path / "a.safetensors")
    torch.testing.assert_close(opened.body.stem.weight, trained.stem.weight)
    with pytest.raises(ModelError, match="timm has no net named 'tinny'"):
        open_backbone("tinny", weights=tmp_path / "a.safetensors")
    save_tensors(tmp_path / "b.safetensors", {"stem.weight": trained.stem.weight})
    with pytest.raises(ModelError, match=r"is not of tiny: it lacks stem\.bias"):
        open_backbone("tiny", weights=tmp_path / "b.safetensors")


def test_without_timm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackageError, match="needs the package 'timm'"):
        open_backbone("tiny", weights="a.safetensors")
