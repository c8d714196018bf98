"""Reads IDX files, the form in which MNIST and its kin are published."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from saccade.errors import TaskError

UNSIGNED_BYTE = 0x08
GZIP = b"\x1f\x8b"


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """The array in an IDX file of unsigned bytes, packed with gzip or not.

    The form (from the MNIST page): two zero bytes, one for the type, one for the number of axes;
    the axes as 32-bit numbers, most significant byte first; the values, last axis fastest.
    """
    data = _bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0":
        raise TaskError(
            f"{path} is no IDX file: it begins with {data[:4].hex(' ') or 'nothing'}",
            hint="fetch it again",
        )
    if data[2] != UNSIGNED_BYTE:
        raise TaskError(
            f"{path} holds values of type 0x{data[2]:02x}, expected 0x08 (unsigned bytes)",
            hint="only images and labels in bytes are read",
        )
    begin = 4 + 4 * data[3]
    axes = range(4, min(begin, len(data)), 4)
    shape = tuple(int.from_bytes(data[place : place + 4], "big") for place in axes)
    found, expected = len(data) - begin, math.prod(shape)
    if found != expected:
        raise TaskError(
            f"{path} is cut short or too long: expected {expected} values of shape {shape}, "
            f"found {max(found, 0)}",
            hint="fetch it again",
        )
    values = np.frombuffer(data, dtype=np.uint8, offset=begin).reshape(shape)
    return torch.from_numpy(values.copy())


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == GZIP else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TaskError(f"{path} is a broken archive: {error}", hint="fetch it again") from error
    except OSError as error:
        raise TaskError(
            f"could not read {path}: {error.strerror or error}", hint="check the path"
        ) from error
