"""Log-mel features against their definition, and against sounds whose pitch is known."""

import math

import torch

from saccade.zoo.tasks.speech import log_mel, mel_bands

RATE = 8000


def tone(pitch, n=4000):
    return torch.sin(2 * math.pi * pitch * torch.arange(n) / RATE)


def test_bands_are_triangles_evenly_spaced_in_pitch():
    bands = mel_bands(256, 11, RATE)
    low, high = (2595 * math.log10(1 + f / 700) for f in (60, RATE / 2))
    corners = [700 * (10 ** ((low + (high - low) * k / 12) / 2595) - 1) for k in range(13)]
    for band in range(11):
        left, top, right = corners[band : band + 3]
        heights = []
        for frequency in (RATE / 2 * k / 128 for k in range(129)):
            up, down = (frequency - left) / (top - left), (right - frequency) / (right - top)
            heights.append(max(0.0, min(up, down)))
        right_shape = torch.tensor(heights) / sum(heights)
        torch.testing.assert_close(bands[:, band], right_shape, atol=1e-4, rtol=1e-3)


def test_a_tone_is_loudest_in_the_band_that_holds_it():
    # Half silence, so that the band's mean over the recording does not take the tone away.
    for pitch in (300.0, 1000.0, 2500.0):
        wave = torch.cat([torch.zeros(4000), tone(pitch)]) + 1e-3 * torch.randn(8000)
        frames = log_mel(wave[None], torch.ones(1, 8000, dtype=torch.bool), rate=RATE).values[0]
        heard = frames[60:90].mean(0) - frames[10:40].mean(0)
        nearest = mel_bands(256, 40, RATE)[round(pitch / RATE * 256)].argmax()
        assert abs(int(heard.argmax()) - int(nearest)) <= 1 or heard[nearest] > 0.9 * heard.max()


def test_there_are_a_hundred_frames_a_second_of_mean_zero():
    torch.manual_seed(0)
    waves = torch.randn(2, 8000)
    mask = torch.arange(8000) < torch.tensor([[8000], [3000]])
    frames = log_mel(waves, mask, rate=RATE)
    assert frames.mask.sum(1).tolist() == [100, 38]
    assert (frames.values[1, 38:] == 0).all()
    torch.testing.assert_close(frames.values[0].mean(0), torch.zeros(40), atol=1e-4, rtol=0)


def test_loudness_and_neighbours_change_nothing():
    torch.manual_seed(0)
    waves = torch.randn(2, 4000) * torch.linspace(0.1, 1.0, 4000)
    mask = torch.arange(4000) < torch.tensor([[4000], [1800]])
    together = log_mel(waves, mask, rate=RATE).values
    alone = log_mel(0.01 * waves[1:, :1800], mask[1:, :1800], rate=RATE).values
    torch.testing.assert_close(together[1, : alone.shape[1]], alone[0], atol=1e-3, rtol=1e-3)


def test_silence_is_no_accident():
    frames = log_mel(torch.zeros(1, 800), torch.ones(1, 800, dtype=torch.bool), rate=RATE)
    assert frames.values.abs().max() < 1e-4
