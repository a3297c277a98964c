"""Data sets by name: found or downloaded, checked, and loaded."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import importlib.util
import math
import os
import struct
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NoReturn

from gradwire.deferred import np, torch
from gradwire.errors import DataError
from gradwire.files import cache_folder
from gradwire.version import how_to_install

_WRITABLE = "make the folder writable, or free disk space"

# scikit-learn's handwritten digits: 1797 real scans of 8x8 pixels, installed with the package.

SHUFFLE_SEED, TEST_SHARE = 0, 0.2


def read_digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return train images, train labels, test images, and test labels. Raises ``DataError``.

    The 80/20 split is always the same. Images are uint8 of shape (count, 8, 8) with values 0 to 16; labels
    are int64.
    """
    # The file is ordered by writer. NumPy's legacy generator is frozen: the shuffle is the same everywhere.
    table = _read_table(_find_file())
    table = table[np.random.RandomState(SHUFFLE_SEED).permutation(len(table))]
    images = torch.from_numpy(table[:, :64].reshape(-1, 8, 8).astype(np.uint8))
    labels = torch.from_numpy(table[:, 64].astype(np.int64))
    test = round(len(labels) * TEST_SHARE)
    return images[test:], labels[test:], images[:test], labels[:test]


def _find_file() -> Path:
    """Return the file of ``sklearn.datasets.load_digits`` without importing sklearn, which takes seconds."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(f"--data digits needs scikit-learn, which isn't installed; {how_to_install('train')}")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _read_table(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"cannot read {path} ({error}); reinstall scikit-learn") from error
    if table.shape[1] != 65:
        raise DataError(f"expected 65 columns in {path}, got {table.shape[1]}; reinstall scikit-learn")
    return table


# A strict reader of gzipped IDX files, the format of MNIST: missing or extra bytes are errors.
#
# Format (http://yann.lecun.com/exdb/mnist): magic ``00 00 08 d`` (unsigned bytes, d dimensions), then d
# big-endian uint32 sizes, then the values, last index fastest.

LIMIT_NBYTES = 1 << 30
"""The largest size accepted from a header, so that a damaged header causes no huge allocation."""


def read_images(path: Path) -> torch.Tensor:
    """Return the images of ``path``, uint8 of shape (count, rows, columns). Raises ``DataError``."""
    return _read(path, 3)


def read_labels(path: Path, classes: int = 10) -> torch.Tensor:
    """Return the labels of ``path``, int64 of shape (count,), all below ``classes``. Raises ``DataError``."""
    labels = _read(path, 1)
    largest = int(labels.max())
    if largest >= classes:
        _refuse(path, f"expected labels from 0 to {classes - 1}, got {largest}")
    return labels.to(torch.int64)


def _read(path: Path, dimensions: int) -> torch.Tensor:
    try:
        with gzip.open(path, "rb") as file:
            return _parse(path, file, dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        _refuse(path, f"expected a complete gzip file ({error})")
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot read {path}: {error.strerror or error}; put a readable file there")


def _parse(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int) -> torch.Tensor:
    header = file.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions:
        _refuse(path, f"expected a header of {4 + 4 * dimensions} bytes, got {len(header)}")
    magic, *shape = struct.unpack(f">I{dimensions}I", header)
    expected = 0x0800 + dimensions
    if magic != expected:
        _refuse(path, f"expected the magic number 0x{expected:08x}, got 0x{magic:08x}")
    count = math.prod(shape)
    if not 0 < count <= LIMIT_NBYTES:
        _refuse(path, f"expected 1 to {LIMIT_NBYTES} values, got the shape {tuple(shape)} in its header")
    values = file.read(count)
    if len(values) < count:
        _refuse(path, f"expected {count} values, got {len(values)}")
    if file.read(1):  # reading to the end also checks the CRC of the gzip file
        _refuse(path, f"expected {count} values, got more")
    return torch.from_numpy(np.frombuffer(bytearray(values), dtype=np.uint8).reshape(shape))


def _refuse(path: Path, reason: str) -> NoReturn:
    raise DataError(f"{path} is damaged: {reason}; replace the file with a fresh copy")


def md5_of(path: Path) -> str:
    """Return the MD5 of a file in hexadecimal, which detects accidental damage only. Raises ``DataError``."""
    try:
        with path.open("rb") as file:
            digest = hashlib.md5(usedforsecurity=False)  # published checksums are MD5
            while block := file.read(1 << 20):
                digest.update(block)
            return digest.hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


# The files of MNIST and Fashion-MNIST: from a folder that the user passes, else from the cache.

NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
"""The files of an IDX data set: train images, train labels, test images, test labels."""


@dataclass(frozen=True)
class Source:
    """A published data set: its cache folder, download URL, and MD5 sums in the order of ``NAMES``."""

    title: str
    folder: str
    mirror: str
    md5: tuple[str, str, str, str]


SOURCES = MappingProxyType(
    {
        "mnist": Source(
            "MNIST",
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        "fashion": Source(
            "Fashion-MNIST",
            "fashion-mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    }
)


def data_folder() -> Path | None:
    """Return the absolute path of ``$GRADWIRE_DATA``, valid in any working folder, or None if unset."""
    named = os.environ.get("GRADWIRE_DATA")
    return Path(named).absolute() if named else None


def find(name: str, data_dir: Path | None = None) -> Path | None:
    """Return the folder with the files of ``name``, or None for ``digits``. Raises ``DataError``.

    It is ``data_dir``, else ``$GRADWIRE_DATA``, else the cache, to which missing files are downloaded.
    """
    if name not in SOURCES:
        return None
    source = SOURCES[name]
    named = data_dir or data_folder()
    if named is not None:
        return _folder_in(named, source)
    folder = cache_folder() / source.folder
    for file, md5 in zip(NAMES, source.md5, strict=True):
        if not (folder / file).is_file():
            _download(source, file, md5, folder)
    return folder


def find_cifar10(named: Path | None = None) -> Path | None:
    """Return the absolute folder of CIFAR-10: ``named``, or ``cifar10`` in ``$GRADWIRE_DATA``, or None."""
    if named is not None:
        return named.absolute()
    folder = data_folder()
    return folder / "cifar10" if folder is not None and (folder / "cifar10").is_dir() else None


def at_hand() -> str:
    """Return ``mnist`` if ``$GRADWIRE_DATA`` holds the files of MNIST, else ``digits``."""
    if data_folder() is None:
        return "digits"
    try:
        find("mnist")
    except DataError:
        return "digits"
    return "mnist"


def refuse_the_other_set(name: str, folder: Path) -> None:
    """Raise ``DataError`` if ``folder`` holds the other data set, whose files have the same names."""
    path = folder / NAMES[0]
    found = md5_of(path)
    for other in SOURCES.values():
        if other != SOURCES[name] and found == other.md5[0]:
            wanted = SOURCES[name].title
            raise DataError(f"expected {wanted}, got {other.title} in {path}; pass the folder of {wanted}")


def _folder_in(named: Path, source: Source) -> Path:
    candidates = (named / source.folder, named)
    best = min(candidates, key=lambda folder: len(_missing(folder)))
    if missing := _missing(best):
        raise DataError(
            f"{source.title} is incomplete in {named}; put {', '.join(missing)} into this folder or its "
            f"subfolder {source.folder}"
        )
    return best


def _missing(folder: Path) -> list[str]:
    return [name for name in NAMES if not (folder / name).is_file()]


def _download(source: Source, name: str, md5: str, folder: Path) -> None:
    try:
        fetch(source.mirror + name, md5, folder / name)
    except DataError as error:
        raise DataError(
            f"{error}; to work offline, put {', '.join(NAMES)} of {source.title} into a folder and pass "
            "that folder as --data-dir, or use --data digits"
        ) from error


CLASSES = 10

DATASETS = ("digits", *SOURCES)
"""The data sets that ``load`` supports."""


@dataclass(frozen=True)
class Dataset:
    """A data set: uint8 images of shape (count, rows, columns), int64 labels. Batches are normalised."""

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
        """The rows and columns of an image."""
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
    """Read a data set from the folder that ``find`` returned. Raises ``DataError``."""
    parts = read_digits() if folder is None else _read_idx(name, folder)
    pixels = parts[0].to(torch.float32)
    return Dataset(name, *parts, mean=float(pixels.mean()), std=float(pixels.std()))


def _read_idx(name: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    refuse_the_other_set(name, folder)
    paths = [folder / file for file in NAMES]
    train_images, train_labels = _read_pair(paths[0], paths[1])
    test_images, test_labels = _read_pair(paths[2], paths[3])
    if train_images.shape[1:] != test_images.shape[1:]:
        raise DataError(
            f"expected images of equal size, got {tuple(train_images.shape[1:])} in {paths[0]} and "
            f"{tuple(test_images.shape[1:])} in {paths[2]}; download both files again"
        )
    return train_images, train_labels, test_images, test_labels


def _read_pair(images_path: Path, labels_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = read_images(images_path), read_labels(labels_path, CLASSES)
    if len(images) != len(labels):
        raise DataError(
            f"expected {len(images)} labels in {labels_path}, got {len(labels)}; download both files again"
        )
    return images, labels


# Downloads into the cache, checked against the published MD5; incomplete files never appear there.

BLOCK_NBYTES = 1 << 16


def fetch(url: str, md5: str, target: Path, timeout_s: float = 30.0) -> None:
    """Download ``url`` to ``target``. Raises ``DataError`` and then leaves ``target`` unchanged.

    A temporary file beside ``target`` is renamed once its MD5 is verified, so ``target`` is never partial.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error.strerror or error}; {_WRITABLE}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            received = _copy(url, file.write, timeout_s)
        found = md5_of(Path(name))
        if found != md5:
            raise DataError(f"expected MD5 {md5} from {url}, got {found} for {received} bytes; try again")
        os.replace(name, target)
    except OSError as error:  # from the disk; network errors are already DataError
        raise DataError(f"cannot write {target}: {error.strerror or error}; {_WRITABLE}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _copy(url: str, write: Callable[[bytes], object], timeout_s: float) -> int:
    received = 0
    try:
        response = urllib.request.urlopen(url, timeout=timeout_s)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"cannot download {url}: {_reason(error)}") from error
    with response:
        while block := _download_read(response, url, received):
            write(block)
            received += len(block)
    announced = response.headers.get("Content-Length")
    if announced is not None and received != int(announced):
        raise DataError(f"cannot download {url}: the connection ended after {received} of {announced} bytes")
    return received


def _download_read(response: http.client.HTTPResponse, url: str, received: int) -> bytes:
    try:
        return response.read(BLOCK_NBYTES)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"cannot download {url}: {_reason(error)} after {received} bytes") from error


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
