import torch

from saccade.zoo.tasks.datasets import generator_of


def test_every_pair_of_seed_and_step_has_numbers_of_its_own():
    # torch drops all but 32 bits of a seed, so this is not a matter of course.
    draws = {
        tuple(torch.rand(3, generator=generator_of(seed, step)).tolist())
        for seed in (0, 1, 2, 3, 5)
        for step in (*range(17), 10_007)
    }
    assert len(draws) == 5 * 18
