# ruff: noqa: NPY002  the global generator is what is tested
"""All generators: taken, put back, and apart in every process."""

import random

import numpy as np
import torch

from saccade.store.folder import load_tensors, save_tensors
from saccade.zoo.training.checkpoint import own_randomness, random_state, seed_all, set_random_state


def draw():
    return (
        torch.rand(3).tolist(),
        np.random.rand(3).tolist(),
        np.random.standard_normal(),
        random.random(),
        random.gauss(0, 1),
    )


def test_after_a_file_everything_draws_the_same_again(tmp_path):
    seed_all(5)
    random.gauss(0, 1)  # one of the pair is waiting now
    np.random.standard_normal()
    save_tensors(tmp_path / "state.safetensors", random_state())
    set_random_state(load_tensors(tmp_path / "state.safetensors"))
    first = draw()
    set_random_state(load_tensors(tmp_path / "state.safetensors"))
    assert draw() == first


def test_processes_draw_differently_and_a_seed_is_a_seed():
    def drawn(seed, rank):
        seed_all(seed, rank=rank)
        return draw()

    assert drawn(5, 0) == drawn(5, 0)
    assert len({str(drawn(seed, rank)) for seed in (0, 1, 2) for rank in (0, 1, 2)}) == 9


def test_what_is_drawn_inside_is_not_noticed_outside():
    seed_all(5)
    expected = torch.rand(3), np.random.rand(3)
    seed_all(5)
    with own_randomness(11):
        inside = torch.rand(2)
        np.random.rand(7)
    assert torch.equal(torch.rand(3), expected[0]) and (np.random.rand(3) == expected[1]).all()
    with own_randomness(11):
        assert torch.equal(torch.rand(2), inside)
