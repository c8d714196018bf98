"""Recipes run on a device that is not the CPU: a tensor that was not moved is refused.

There is no GPU in the tests; `second_device.py` plays one. Families that need no data set but
MNIST's form are here.
"""

import sys
from pathlib import Path

import pytest
import torch

from saccade.zoo.recipes.registry import find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.recipes.settings import with_settings
from saccade.zoo.training import loop, run_state

sys.path.insert(0, str(Path(__file__).parent))
from second_device import DEVICE, SecondDevice, play

MACHINE = ["d_bits=3", "d_hidden=8", "n_slots=16", "n_slots_tested=19", "d_slot=8", "n_valid=8"]
SCENE = ["size=40", "n_clutter=1", "batch=13", "d_hidden=16", "warmup=1"]
SMALL = {
    "adding-lstm": (["length=6", "d_hidden=8", "n_test=20"], None),
    "copying-lstm": (["length=4", "d_hidden=8", "n_test=20"], None),
    "row-mnist": (["d_hidden=8", "batch=13"], None),
    "ntm-copy": ([*MACHINE, "n_test=8", "lengths=1,2", "tested=2"], "2"),
    "dnc-copy": ([*MACHINE, "n_test=8", "lengths=1,2", "tested=2"], "2"),
    "sam-recall": ([*MACHINE, "n_test=8", "lengths=2,3", "tested=3"], "3"),
    "ham-sort": (
        ["d_bits=2", "lengths=1,3", "tested=3", "d_node=8", "d_hidden=8", "n_test=8", "n_valid=8"],
        "3 0 2",
    ),
    "execute": (
        ["length=1", "d_embed=7", "d_hidden=13", "n_layers=1", "programs=60", "n_valid=5"],
        "print(12)",
    ),
    "ram-mnist": (["n_glimpses=2", "d_hidden=16", "d_glimpse=8", "batch=16"], "0"),
    "conv-mnist": (["d_hidden=8", "batch=16"], None),
    "dram-pairs": (
        ["size=84", "n_glimpses=2", "patch=8", "n_scales=2", "d_hidden=16", "batch=16"],
        "0",
    ),
    "diffram-cluttered100": ([*SCENE, "n_glimpses=2"], "0"),
    "edram-cluttered100": ([*SCENE, "n_glimpses=2", "channels=4,6"], "0"),
    "stn-cluttered60": ([*SCENE, "channels=4,6"], "0"),
    "draw-mnist": (["n_steps=2", "d_hidden=16", "d_latent=4", "batch=13"], "0"),
    "foveal-mnist": (["n_glimpses=2", "side=5", "d_hidden=8", "d_factor=8", "batch=16"], "0"),
}


def test_a_forgotten_move_is_refused():
    with SecondDevice():
        model = torch.nn.Linear(3, 5).to(DEVICE)
        x = torch.randn(7, 3)
        with pytest.raises(RuntimeError, match="expected all tensors on the same device"):
            model(x)
        assert model(x.to(DEVICE)).device == DEVICE
        torch.testing.assert_close(model(x.to(DEVICE)).cpu(), model.cpu()(x))


# torch takes the second device, which is named meta, for one that holds no numbers.
@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
@pytest.mark.parametrize("name", SMALL)
def test_a_family_trains_evaluates_and_traces_elsewhere(name, little_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "device_of", lambda _: DEVICE)
    monkeypatch.setattr(run_state, "device_of", lambda _: DEVICE)
    words, asked = SMALL[name]
    recipe = find_recipe(name)
    play(monkeypatch)
    settings = with_settings(recipe.settings, [*words, "steps=2", "validate_steps=1"])
    with SecondDevice():
        metrics = train_recipe(recipe, tmp_path / "run", settings=settings)
        assert recipe.metric in metrics["test"]
        run = load_run(tmp_path / "run")
        run.model.to(DEVICE)
        with torch.no_grad():
            recipe.evaluate(run, None)
            if asked is not None:
                assert run.trace(asked)
