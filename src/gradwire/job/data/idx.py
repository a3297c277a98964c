"""A strict reader of gzipped IDX files, the format of MNIST: every byte is accounted for.

Format (http://yann.lecun.com/exdb/mnist): magic ``00 00 08 d`` (unsigned bytes, d dimensions), then d
big-endian uint32 sizes, then the values, last index fastest.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn

from gradwire.deferred import np, torch
from gradwire.errors import DataError

LIMIT_NBYTES = 1 << 30
"""No data set of this kind is larger; a header that says so is damaged, and must not make us allocate."""


def read_images(path: Path) -> torch.Tensor:
    """Return the images of ``path``, uint8 of shape (count, rows, columns). Raises ``DataError``."""
    return _read(path, 3)


def read_labels(path: Path, classes: int = 10) -> torch.Tensor:
    """Return the labels of ``path``, int64 of shape (count,), all below ``classes``. Raises ``DataError``."""
    labels = _read(path, 1)
    largest = int(labels.max())
    if largest >= classes:
        _refuse(path, f"a label is {largest}, but labels are 0 to {classes - 1}")
    return labels.to(torch.int64)


def _read(path: Path, dimensions: int) -> torch.Tensor:
    try:
        with gzip.open(path, "rb") as file:
            return _parse(path, file, dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        _refuse(path, f"it is no whole gzip file ({error})")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int) -> torch.Tensor:
    header = file.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions:
        _refuse(path, f"its header ends after {len(header)} of {4 + 4 * dimensions} bytes")
    magic, *shape = struct.unpack(f">I{dimensions}I", header)
    expected = 0x0800 + dimensions
    if magic != expected:
        _refuse(path, f"its magic number is 0x{magic:08x}, but 0x{expected:08x} is expected")
    count = math.prod(shape)
    if not 0 < count <= LIMIT_NBYTES:
        _refuse(path, f"its header gives the shape {tuple(shape)}")
    values = file.read(count)
    if len(values) < count:
        _refuse(path, f"it holds {len(values)} of the {count} values that its header announces")
    if file.read(1):  # reading to the end also checks the CRC of the gzip file
        _refuse(path, f"it holds more than the {count} values that its header announces")
    return torch.from_numpy(np.frombuffer(bytearray(values), dtype=np.uint8).reshape(shape))


def _refuse(path: Path, reason: str) -> NoReturn:
    raise DataError(f"{path} is damaged: {reason}; replace it by a fresh copy")
