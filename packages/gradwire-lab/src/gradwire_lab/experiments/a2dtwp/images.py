"""CIFAR-10 and CIFAR-100 from a folder, and scikit-learn's digits without a folder."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from gradwire.errors import DataError
from gradwire_lab.experiments.a2dtwp.options import CIFAR10, CIFAR100, DIGITS
from gradwire_lab.job.data import load

SIDE = 32
PIXELS = 3 * SIDE * SIDE
BINARY = (("data_batch_*.bin", "test_batch.bin", 1), ("train.bin", "test.bin", 2))
"""The binary versions of CIFAR-10 and CIFAR-100: training files, test file, and label bytes per image."""
SOME = 1000
"""The number of images whose mean and standard deviation normalize all images."""


@dataclass(frozen=True)
class Images:
    """Images as uint8 of shape (count, 3, 32, 32), and labels as int64. Batches are normalized."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor

    @property
    def classes(self) -> int:
        """The number of the images' classes."""
        return int(self.train_labels.max()) + 1

    def part(self, count: int) -> Images:
        """Return the same images with only the first ``count`` training images."""
        return replace(self, train=self.train[:count], train_labels=self.train_labels[:count])

    def epoch(self, size: int) -> int:
        """Return the number of batches of this size in an epoch."""
        return max(len(self.train_labels) // size, 1)

    def batches(self, size: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield training batches without end. The order differs in each epoch."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.train_labels), generator=generator)
            for chosen in torch.split(order, size)[: self.epoch(size)]:
                yield self._normalise(self.train[chosen]), self.train_labels[chosen]

    def validation(self, count: int, size: int = 250) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the first ``count`` test images, in batches."""
        parts = zip(
            torch.split(self.test[:count], size), torch.split(self.test_labels[:count], size), strict=True
        )
        return [(self._normalise(images), labels) for images, labels in parts]

    def _normalise(self, images: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments
        return images.float().sub_(mean).div_(deviation)

    @cached_property
    def _moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        some = self.train[:SOME].float()
        return some.mean((0, 2, 3)).view(3, 1, 1), some.std((0, 2, 3)).clamp(min=1e-6).view(3, 1, 1)


def name_of(folder: Path | None, images: Images) -> str:
    """Return the name of the images in a folder, or of scikit-learn's digits without a folder."""
    if folder is None:
        return DIGITS
    return CIFAR100 if images.classes > 10 else CIFAR10


def read_images(folder: Path | None) -> Images:
    """Return the images of a folder or, without a folder, scikit-learn's digits.

    The digits are enlarged and have three equal channels. A folder has the binary version of CIFAR-10 or
    CIFAR-100, or NumPy archives ``train*.npz`` and ``test*.npz`` with labels ``y`` and images ``x`` of shape
    (count, 3, 32, 32). Instead of ``x``, an archive may have ``dd``: planes (G, R - G, B - G) as differences
    along columns and rows, which are smaller on disk.

    Raises ``DataError``.
    """
    if folder is None:
        return _digits()
    for training, test, labels in BINARY:
        files = sorted(folder.glob(training))
        if files and (folder / test).is_file():
            return Images(*_read_binary(files, labels), *_read_binary([folder / test], labels))
    archives = [sorted(folder.glob(f"{part}*.npz")) for part in ("train", "test")]
    if all(archives):
        return Images(*_read_archives(archives[0]), *_read_archives(archives[1]))
    raise DataError(
        f"expected the binary version of CIFAR-10 or CIFAR-100, or train*.npz and test*.npz, in --data-dir, "
        f"got {folder} without these files; unpack cifar-10-binary.tar.gz and pass its folder"
    )


def _digits() -> Images:
    found = load("digits")
    enlarged = [
        images.repeat_interleave(4, 1).repeat_interleave(4, 2).unsqueeze(1).expand(-1, 3, -1, -1)
        for images in (found.train_images, found.test_images)
    ]
    return Images(enlarged[0], found.train_labels, enlarged[1], found.test_labels)


def _read_binary(files: Sequence[Path], labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    parts = []
    for path in files:
        content = np.fromfile(path, dtype=np.uint8)
        if not content.size or content.size % (labels + PIXELS):
            raise DataError(
                f"expected records of {labels + PIXELS} bytes in {path}, got {content.size} bytes; "
                "download the data set again"
            )
        parts.append(torch.from_numpy(content).view(-1, labels + PIXELS))
    every = torch.cat(parts)
    return every[:, labels:].reshape(-1, 3, SIDE, SIDE), every[:, labels - 1].long()


def _read_archives(files: Sequence[Path]) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [_read_archive(path) for path in files]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _read_archive(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            images = archive["x"] if "x" in archive else _summed(archive["dd"])
            labels = archive["y"].astype(np.int64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"cannot read images and labels from {path}: {error}; download the data set again"
        ) from error
    if images.shape != (len(labels), 3, SIDE, SIDE) or images.dtype != np.uint8:
        raise DataError(
            f"expected {len(labels)} images of shape (3, 32, 32) in uint8 in {path}, got {images.shape} in "
            f"{images.dtype}; download the data set again"
        )
    return torch.from_numpy(images), torch.from_numpy(labels)


def _summed(
    differences: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the images of planes (G, R - G, B - G), stored as differences modulo 256 along both axes."""
    planes = differences.cumsum(2, np.uint8).cumsum(3, np.uint8)
    green = planes[0]
    return np.stack([planes[1] + green, green, planes[2] + green], 1)
