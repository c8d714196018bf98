"""Sound out of WAV files, refused with one clear line where it is not what was expected."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int16
from torch import Tensor

from saccade.errors import TaskError

LOUDEST = 32768.0  # what a 16-bit sample is a share of


def read_wave(path: str | Path, *, rate: int) -> Int16[Tensor, " sample"]:
    """The samples of a WAV file: one channel, 16 bits, ``rate`` samples a second."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TaskError(
            f"could not read {path}: {error.strerror or error}", hint="check the path"
        ) from error
    return decode_wave(data, str(path), rate=rate)


def decode_wave(data: bytes, where: str, *, rate: int) -> Int16[Tensor, " sample"]:
    """The same of a file that was read.

    Args:
        where: what it is called in an error.
    """
    hint = f"make it anew: ffmpeg -i IN -ac 1 -ar {rate} -c:a pcm_s16le OUT.wav"
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
