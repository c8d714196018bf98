"""WAV files: what was written is read, and what is no such file is refused in one line."""

import io
import wave

import pytest
import torch

from saccade.errors import TaskError
from saccade.zoo.tasks.speech import decode_wave


def wave_bytes(samples, *, rate=8000, channels=1, width=2):
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.numpy().tobytes())
    return held.getvalue()


SAMPLES = torch.tensor([0, 1, -1, 32767, -32768, 17], dtype=torch.int16)
GOOD = wave_bytes(SAMPLES)


def test_what_was_written_is_read():
    assert torch.equal(decode_wave(GOOD, "a.wav", rate=8000), SAMPLES)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is no WAV file that can be read: it ends too early"),
        (b"ID3 something else altogether", "is no WAV file that can be read"),
        (GOOD[:30], "is no WAV file that can be read"),
        (GOOD[:-4], "is cut short: it should hold 6 samples, and holds 4"),
        (wave_bytes(SAMPLES[:0]), "holds no sound"),
        (wave_bytes(SAMPLES, rate=16000), "has 1 of 16 bits at 16000 Hz"),
        (
            wave_bytes(SAMPLES, channels=2),
            "expected one channel of 16 bits at 8000 Hz, .* has 2 of",
        ),
        (wave_bytes(SAMPLES.byte(), width=1), "has 1 of 8 bits"),
    ],
)
def test_anything_else_is_refused_with_a_way_out(data, said):
    with pytest.raises(TaskError, match=said) as caught:
        decode_wave(data, "a.wav", rate=8000)
    assert "ffmpeg" in caught.value.hint or "another copy" in caught.value.hint
    assert "\n" not in str(caught.value)
