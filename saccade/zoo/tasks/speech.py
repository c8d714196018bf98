"""WAV files, and their log-mel features: the energy of each frequency band, frame by frame."""

from __future__ import annotations

import io
import wave
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int16
from torch import Tensor
from torch.nn import functional

from saccade.errors import TaskError
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD

# Sound from WAV files; anything unexpected raises a one-line error.

LOUDEST = 32768.0  # full scale of a 16-bit sample


def decode_wave(data: bytes, where: str, *, rate: int) -> Int16[Tensor, " sample"]:
    """The samples of a WAV file's bytes: one channel, 16 bits, ``rate`` samples a second.

    Args:
        where: its name in an error message.
    """
    hint = f"convert it: ffmpeg -i IN -ac 1 -ar {rate} -c:a pcm_s16le OUT.wav"
    try:
        with wave.open(io.BytesIO(data)) as opened:
            form, n = opened.getparams(), opened.getnframes()
            sound = opened.readframes(n)
    except (wave.Error, EOFError) as error:
        why = str(error) or "it ends too early"
        raise TaskError(f"{where} is no WAV file that can be read: {why}", hint=hint) from error
    found = (form.nchannels, 8 * form.sampwidth, form.framerate)
    if found != (1, 16, rate):
        raise TaskError(
            f"expected one channel of 16 bits at {rate} Hz, {where} has {found[0]} of {found[1]} "
            f"bits at {found[2]} Hz",
            hint=hint,
        )
    if len(sound) < 2 * n or n == 0:
        raise TaskError(
            f"{where} is cut short: it should hold {n} samples, and holds {len(sound) // 2}"
            if n
            else f"{where} holds no sound",
            hint="take another copy of it",
        )
    return torch.from_numpy(np.frombuffer(sound, dtype="<i2").astype(np.int16))


# Frames of sound or of ink, and their text: the training data of every recogniser.


class Frames(NamedTuple):
    """Rows of frames; the mask is True for real frames, which come first."""

    values: Float[Tensor, "batch frame d_frame"]
    mask: Bool[Tensor, "batch frame"]


class Spelling(NamedTuple):
    """The text for a decoder, which reads ``target_in`` and predicts ``target_out``."""

    target_in: Int[Tensor, "batch pos"]
    """Begins with BOS."""
    target_out: Int[Tensor, "batch pos"]
    """Ends in EOS."""
    mask: Bool[Tensor, "batch pos"]


class FrameBatch(NamedTuple):
    """A batch of recordings, and their texts."""

    frames: Float[Tensor, "batch frame d_frame"]
    frame_mask: Bool[Tensor, "batch frame"]
    text: Int[Tensor, "batch pos"]
    """Ids of a tokenizer, without BOS and EOS, padded with PAD."""
    text_mask: Bool[Tensor, "batch pos"]

    @property
    def source(self) -> Frames:
        """The input of a recogniser."""
        return Frames(self.frames, self.frame_mask)

    @property
    def spelling(self) -> Spelling:
        """The text with BOS and EOS."""
        mask = functional.pad(self.text_mask, (1, 0), value=True)
        ends = self.text_mask.sum(1, keepdim=True)
        target_in = functional.pad(self.text, (1, 0), value=BOS).where(mask, PAD)
        target_out = functional.pad(self.text, (0, 1), value=PAD).scatter(1, ends, EOS)
        return Spelling(target_in, target_out, mask)


WINDOW, HOP = 0.025, 0.010  # seconds, what speech recognisers have used since the 1980s
LOWEST = 60.0  # Hz: below it there is only hum, no voice
FAINTEST = 1e-4  # relative to full scale: fainter sound counts as silence


def log_mel(
    waves: Float[Tensor, "batch sample"],
    mask: Bool[Tensor, "batch sample"],
    *,
    rate: int,
    n_mels: int = 40,
) -> Frames:
    """The logarithm of the energy in ``n_mels`` bands of pitch, 100 times a second.

    Davis and Mermelstein, 1980 ("Comparison of parametric representations for monosyllabic word
    recognition"), without the final cosine transform, which networks do not need. The spectrum is
    `torch.stft`'s. The loudness of each row is normalised first, and each band to mean 0 and
    variance 1 over the row's own frames, which removes the effect of microphone and room.

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

    Stevens and Volkmann's scale, 1940, in the form of O'Shaughnessy, 1987. Neighbours cross at half
    their height; each has area one, so that wider bands are not louder.
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
    return centred / (spread + 0.1)  # a constant band becomes zero
