"""The files of an IDX data set, made up."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from gradwire_lab.job.data import NAMES


def write(folder: Path, train: int = 30, test: int = 20, test_labels: int = 20, test_rows: int = 4) -> Path:
    """Write them to a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 256, (train, 4, 5)),
        np.arange(train) % 10,
        rng.integers(0, 256, (test, test_rows, 5)),
        np.arange(test_labels) % 10,
    )
    for name, array in zip(NAMES, arrays, strict=True):
        header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
        (folder / name).write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0))
    return folder
