from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gradwire.errors import DataError
from gradwire_lab.experiments.a2dtwp.images import name_of, read_images

PIXELS = 3 * 32 * 32


def made_up(count: int, seed: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], list[int]]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 3, 32, 32), np.uint8), [*range(count)]


def write_binary(path: Path, count: int, seed: int, coarse: bytes = b"") -> None:
    images, labels = made_up(count, seed)
    path.write_bytes(b"".join(coarse + bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True)))


def test_without_a_folder_there_are_digits() -> None:
    pytest.importorskip("sklearn")
    images = read_images(None)
    assert images.train.shape[1:] == (3, 32, 32)
    assert images.classes == 10
    assert torch.equal(images.train[0, 0], images.train[0, 2])
    assert len(images.test) + len(images.train) == 1797


@pytest.mark.parametrize("coarse", [b"", b"\x07"])
def test_the_binary_versions_are_read(tmp_path: Path, coarse: bytes) -> None:
    names = (
        ["train.bin", "test.bin"] if coarse else ["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"]
    )
    for seed, name in enumerate(names):
        write_binary(tmp_path / name, 3 + seed, seed, coarse)
    images = read_images(tmp_path)
    expected = [made_up(3 + seed, seed) for seed in range(len(names))]
    assert torch.equal(images.train, torch.from_numpy(np.concatenate([x for x, _ in expected[:-1]])))
    assert images.train_labels.tolist() == [y for _, labels in expected[:-1] for y in labels]
    assert torch.equal(images.test, torch.from_numpy(expected[-1][0]))


def test_archives_are_read_plain_and_differenced(tmp_path: Path) -> None:
    plain, labels = made_up(5, 0)
    np.savez(tmp_path / "train_0.npz", x=plain, y=labels)
    red, green, blue = plain[:, 0], plain[:, 1], plain[:, 2]
    planes = np.stack([green, red - green, blue - green])
    once = np.diff(planes, axis=3, prepend=np.uint8(0))
    np.savez(tmp_path / "test_0.npz", dd=np.diff(once, axis=2, prepend=np.uint8(0)), y=labels)
    images = read_images(tmp_path)
    assert torch.equal(images.test, images.train)
    assert torch.equal(images.test, torch.from_numpy(plain))
    assert images.test_labels.tolist() == labels


def test_batches_are_normalised_and_in_an_order_of_the_seed(tmp_path: Path) -> None:
    for name, seed in (("train.bin", 0), ("test.bin", 1)):
        write_binary(tmp_path / name, 40, seed, b"\0")
    images = read_images(tmp_path)
    batches, again = images.batches(16, 3), images.batches(16, 3)
    x, y = next(batches)
    assert torch.equal(x, next(again)[0])
    assert sorted(torch.cat([y, next(batches)[1]]).tolist()) == sorted(
        {*y.tolist(), *torch.cat([y, next(again)[1]]).tolist()}
    )
    assert abs(float(x.mean())) < 0.1
    assert abs(float(x.std()) - 1) < 0.1
    assert [len(labels) for _, labels in images.validation(30, size=20)] == [20, 10]


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the binary version of CIFAR-10 or CIFAR-100"):
        read_images(tmp_path)
    (tmp_path / "train.bin").write_bytes(bytes(PIXELS))
    (tmp_path / "test.bin").write_bytes(bytes(PIXELS + 2))
    with pytest.raises(DataError, match=rf"expected records of {PIXELS + 2} bytes in .*, got {PIXELS} bytes"):
        read_images(tmp_path)


@pytest.mark.parametrize("content", [{"y": [1]}, {"x": np.zeros((2, 3, 32, 32), np.uint8), "y": [1]}])
def test_an_archive_of_something_else_is_refused(tmp_path: Path, content: dict[str, object]) -> None:
    for name in ("train", "test"):
        np.savez(tmp_path / f"{name}.npz", **content)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="download the data set again"):
        read_images(tmp_path)
    (tmp_path / "train.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="cannot read images and labels from"):
        read_images(tmp_path)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    for name in (path, tmp_path / "test.npz"):
        np.savez_compressed(name, x=np.zeros((2, 3, 32, 32), np.uint8), y=[1, 2])
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-9])
    with pytest.raises(DataError, match=r"cannot read images and labels from .*train\.npz"):
        read_images(tmp_path)
    content[30 + content[26] + content[28]] = 0xFF  # the first block, after a header, a name, and extra data
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read images and labels from .*train\.npz"):
        read_images(tmp_path)


def test_an_epoch_has_each_image_once_at_most(tmp_path: Path) -> None:
    for seed, name in enumerate(("data_batch_1.bin", "test_batch.bin")):
        write_binary(tmp_path / name, 7, seed)
    images = read_images(tmp_path)
    assert [images.epoch(size) for size in (1, 2, 7, 8)] == [7, 3, 1, 1]
    labels = [y for _, (_, y) in zip(range(6), images.batches(2, seed=0), strict=False)]
    for epoch in (labels[:3], labels[3:]):
        assert len({*torch.cat(epoch).tolist()}) == 6


def test_a_part_has_the_first_images_and_the_name_of_all(tmp_path: Path) -> None:
    for seed, name in enumerate(("train.bin", "test.bin")):
        write_binary(tmp_path / name, 12, seed, b"\0")
    images = read_images(tmp_path)
    part = images.part(5)
    assert torch.equal(part.train, images.train[:5])
    assert len(part.test) == 12
    assert name_of(tmp_path, images) == "cifar100", "it has 12 classes"
    assert name_of(tmp_path, part) == "cifar10"
    assert name_of(None, part) == "digits"
