"""Log-mel features: how much of each pitch there is, frame by frame."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.tasks.frame_batch import Frames

WINDOW, HOP = 0.025, 0.010  # seconds, what speech recognisers have used since the 1980s
LOWEST = 60.0  # Hz: below it there is hum, and no voice
FAINTEST = 1e-4  # of the spectrum at full loudness: what is fainter counts as silence


def log_mel(
    waves: Float[Tensor, "batch sample"],
    mask: Bool[Tensor, "batch sample"],
    *,
    rate: int,
    n_mels: int = 40,
) -> Frames:
    """The logarithm of the energy in ``n_mels`` bands of pitch, 100 times a second.

    Davis and Mermelstein, 1980 ("Comparison of parametric representations for monosyllabic word
    recognition"), without the cosine transform at their end, which networks have no need of. The
    spectrum is `torch.stft`'s. Each row is brought to one loudness first, and each band to mean 0
    and variance 1 over the row's own frames, so that neither the microphone nor the room is heard.

    >>> waves = torch.sin(torch.arange(1600) / 3)[None]
    >>> log_mel(waves, torch.ones(1, 1600, dtype=torch.bool), rate=8000).values.shape
    torch.Size([1, 20, 40])
    """
    size, hop = round(WINDOW * rate), round(HOP * rate)
    n_fft = 1 << (size - 1).bit_length()  # the next power of two
    frame_mask = mask[:, ::hop]  # a frame is real if its middle is
    sound = waves.masked_fill(~mask, 0.0)
    n = mask.sum(1, keepdim=True).clamp_min(1)
    level = torch.linalg.vector_norm(sound, dim=1, keepdim=True) / n.sqrt()
    spectrum = torch.stft(
        sound / level.clamp_min(1e-8),
        n_fft,
        hop_length=hop,
        win_length=size,
        window=torch.hann_window(size, device=waves.device),
        pad_mode="constant",
        return_complex=True,
    )  # [batch, frequency, frame]
    energy = spectrum.real.square().addcmul_(spectrum.imag, spectrum.imag)
    bands = energy.mT @ mel_bands(n_fft, n_mels, rate).to(waves) / size
    values = (bands + FAINTEST).log()[:, : frame_mask.shape[1]]
    return Frames(_standardised(values, frame_mask), frame_mask)


@cache
def mel_bands(n_fft: int, n_mels: int, rate: int) -> Float[Tensor, "frequency n_mels"]:
    """Triangles over the frequencies, evenly spaced in pitch (``2595 log10(1 + f / 700)``).

    Stevens and Volkmann's scale, 1940, in the form of O'Shaughnessy, 1987. Neighbours meet
    half-way up; each has the area of one, so that no band is louder for being wider.
    """
    frequencies = torch.linspace(0.0, rate / 2, n_fft // 2 + 1)
    ends = torch.tensor([LOWEST, rate / 2])
    low, high = (2595 * (1 + ends / 700).log10()).tolist()
    corners = 700 * (10 ** (torch.linspace(low, high, n_mels + 2) / 2595) - 1)
    left, top, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - left) / (top - left)
    falling = (right - frequencies[:, None]) / (right - top)
    triangles = torch.minimum(rising, falling).clamp_min(0.0)
    return triangles / triangles.sum(0).clamp_min(1e-6)


def _standardised(values: Tensor, mask: Tensor) -> Tensor:
    real = mask[:, :, None]
    n = real.sum(1, keepdim=True).clamp_min(1)
    mean = values.where(real, 0.0).sum(1, keepdim=True) / n
    centred = (values - mean).where(real, 0.0)
    spread = (centred.square().sum(1, keepdim=True) / n).sqrt()
    return centred / (spread + 0.1)  # a band in which nothing happens stays silent
