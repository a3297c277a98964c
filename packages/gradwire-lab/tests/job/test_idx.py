import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from gradwire.errors import DataError
from gradwire_lab.job.data import read_images, read_labels

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([7, 0, 9], dtype=np.uint8)


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">I{values.ndim}I", 0x800 + values.ndim, *values.shape) + values.tobytes()


def put(folder: Path, content: bytes, *, packed: bool = True) -> Path:
    path = folder / "file.gz"
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def test_images_and_labels_come_back_in_order(tmp_path: Path) -> None:
    assert torch.equal(read_images(put(tmp_path, idx(IMAGES))), torch.from_numpy(IMAGES))
    labels = read_labels(put(tmp_path, idx(LABELS)))
    assert labels.dtype == torch.int64
    assert labels.tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "header of 16 bytes, got 0"),
        (idx(IMAGES)[:15], "header of 16 bytes, got 15"),
        (idx(LABELS) + bytes(20), "magic number 0x00000803, got 0x00000801"),
        (b"\x00\x00\x0d\x03" + idx(IMAGES)[4:], "got 0x00000d03"),
        (struct.pack(">4I", 0x803, 0, 28, 28), r"shape \(0, 28, 28\)"),
        (struct.pack(">4I", 0x803, 2**31, 2**31, 2**31), "shape"),
        (idx(IMAGES)[:-1], "expected 24 values, got 23"),
        (idx(IMAGES) + b"\x00", "expected 24 values, got more"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = put(tmp_path, content)
    with pytest.raises(DataError, match=reason) as caught:
        read_images(path)
    assert str(path) in str(caught.value)


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected labels from 0 to 8, got 9"):
        read_labels(put(tmp_path, idx(LABELS)), classes=9)


@pytest.mark.parametrize("cut", [1, 5, 9, 20])
def test_a_cut_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = put(tmp_path, gzip.compress(idx(IMAGES))[:-cut], packed=False)
    with pytest.raises(DataError, match="expected a complete gzip file"):
        read_images(path)


def test_every_flipped_byte_is_found_or_harmless(tmp_path: Path) -> None:
    whole = gzip.compress(idx(IMAGES), mtime=0)
    found = 0
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 0x10
        path = put(tmp_path, bytes(altered), packed=False)
        try:
            images = read_images(path)
        except DataError:
            found += 1
        else:  # the time and the system in the header, the unused bits of the last byte of the stream
            assert torch.equal(images, torch.from_numpy(IMAGES)), place
    assert found > len(whole) - 10


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.gz: No such file"):
        read_images(tmp_path / "none.gz")
