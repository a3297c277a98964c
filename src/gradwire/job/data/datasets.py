"""The data sets by name, loaded and ready to be cut into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradwire.deferred import torch
from gradwire.errors import DataError
from gradwire.job.data.digits import read_digits
from gradwire.job.data.idx import read_images, read_labels
from gradwire.job.data.sources import NAMES, SOURCES, refuse_the_other_set

CLASSES = 10

DATASETS = ("digits", *SOURCES)
"""The names that ``load`` knows."""


@dataclass(frozen=True)
class Dataset:
    """Images as uint8 of shape (count, rows, columns), labels as int64; batches come normalised."""

    name: str
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    mean: float
    std: float
    classes: int = CLASSES

    @property
    def image_shape(self) -> tuple[int, int]:
        """Rows and columns of an image."""
        return self.train_images.shape[1], self.train_images.shape[2]

    def train_batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images ``indices`` as float32 (count, 1, rows, columns), and their labels."""
        return self._normalise(self.train_images[indices]), self.train_labels[indices]

    def test_batches(self, size: int = 1000) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the whole test set in batches of at most ``size``."""
        for start in range(0, len(self.test_labels), size):
            part = slice(start, start + size)
            yield self._normalise(self.test_images[part]), self.test_labels[part]

    def _normalise(self, images: torch.Tensor) -> torch.Tensor:
        return ((images.to(torch.float32) - self.mean) / self.std).unsqueeze(1)


def load(name: str, folder: Path | None = None) -> Dataset:
    """Read a data set; ``folder`` is what ``find`` returned. Raises ``DataError``."""
    parts = read_digits() if folder is None else _read_idx(name, folder)
    pixels = parts[0].to(torch.float32)
    return Dataset(name, *parts, mean=float(pixels.mean()), std=float(pixels.std()))


def _read_idx(name: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    refuse_the_other_set(name, folder)
    paths = [folder / file for file in NAMES]
    train_images, train_labels = _read_pair(paths[0], paths[1])
    test_images, test_labels = _read_pair(paths[2], paths[3])
    if train_images.shape[1:] != test_images.shape[1:]:
        raise DataError(f"{paths[0]} and {paths[2]} hold images of different sizes; get both files anew")
    return train_images, train_labels, test_images, test_labels


def _read_pair(images_path: Path, labels_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = read_images(images_path), read_labels(labels_path, CLASSES)
    if len(images) != len(labels):
        raise DataError(f"{labels_path} holds {len(labels)} labels for {len(images)} images; get both anew")
    return images, labels
