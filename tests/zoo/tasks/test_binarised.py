"""Digits in ink or no ink: drawn by their grey values, and the same for the same seed."""

import torch

from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.mnist import BinarisedDigits, Digits, binarise

IMAGES, HEIGHT, WIDTH, BATCH = 7, 5, 3, 3


def digits():
    grey = torch.arange(IMAGES * HEIGHT * WIDTH).mul(2).to(torch.uint8)
    return Digits(grey.view(IMAGES, HEIGHT, WIDTH), torch.arange(IMAGES))


def test_a_pixel_is_ink_as_often_as_it_is_grey():
    images = digits().images[:1].expand(20_000, -1, -1)
    often = binarise(images, generator_of(0, 0)).mean(0)
    torch.testing.assert_close(often, images[0] / 255, rtol=0, atol=0.02)


def test_paper_stays_paper_and_full_ink_stays_ink():
    images = torch.tensor([[[0, 255]]], dtype=torch.uint8).expand(1000, 1, 2)
    drawn = binarise(images, generator_of(0, 0))
    assert (drawn[:, 0, 0] == 0).all() and (drawn[:, 0, 1] == 1).all()


def test_an_epoch_has_every_digit_once_and_another_epoch_other_pixels():
    blank = Digits(torch.zeros(IMAGES, 1, IMAGES, dtype=torch.uint8), torch.arange(IMAGES))
    blank.images[torch.arange(IMAGES), 0, torch.arange(IMAGES)] = 255  # digit i has ink at place i
    batches = list(BinarisedDigits(blank, batch=BATCH, seed=0, epoch=0))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert torch.cat(batches).sum((0, 1)).tolist() == [1.0] * IMAGES
    first, second = (BinarisedDigits(digits(), batch=BATCH, seed=0, epoch=e)[0] for e in (0, 1))
    assert not torch.equal(first, second)


def test_a_batch_is_the_same_whatever_was_made_before():
    made = BinarisedDigits(digits(), batch=BATCH, seed=3, epoch=2)
    again = BinarisedDigits(digits(), batch=BATCH, seed=3, epoch=2)
    list(made)
    torch.testing.assert_close(made[1], again[1])
