"""Where the files of MNIST and Fashion-MNIST come from: a folder that the user names, else the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gradwire.errors import DataError
from gradwire.files import cache_folder
from gradwire.job.data.checksum import md5_of

NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
"""The files of an IDX data set: train images, train labels, test images, test labels."""


@dataclass(frozen=True)
class Source:
    """A published data set: its files' MD5 in the order of ``NAMES``, and where they are served."""

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


def find(name: str, data_dir: Path | None = None) -> Path | None:
    """Return the folder that holds the files of ``name``, downloading them if need be. Raises ``DataError``.

    ``digits`` has no files: None. Otherwise ``data_dir``, else ``$GRADWIRE_DATA``, else the cache. Only the
    cache is downloaded to, since a folder that the user named is the user's.
    """
    if name not in SOURCES:
        return None
    source = SOURCES[name]
    variable = os.environ.get("GRADWIRE_DATA")
    named = data_dir or (Path(variable) if variable else None)
    if named is not None:
        return _folder_in(named, source)
    folder = cache_folder() / source.folder
    for file, md5 in zip(NAMES, source.md5, strict=True):
        if not (folder / file).is_file():
            _download(source, file, md5, folder)
    return folder


def find_cifar10(named: Path | None = None) -> Path | None:
    """Return the folder of CIFAR-10: ``named``, else ``cifar10`` in ``$GRADWIRE_DATA``; None without either.

    The path is absolute, so that programs in other folders find it. Its files aren't checked.
    """
    variable = os.environ.get("GRADWIRE_DATA")
    if named is not None or not variable:
        return None if named is None else named.absolute()
    folder = Path(variable, "cifar10").absolute()
    return folder if folder.is_dir() else None


def at_hand() -> str:
    """Return ``mnist`` if ``$GRADWIRE_DATA`` holds its files, else ``digits``."""
    if not os.environ.get("GRADWIRE_DATA"):
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
            raise DataError(f"{path} belongs to {other.title}, but {wanted} is asked for; name its folder")


def _folder_in(named: Path, source: Source) -> Path:
    candidates = (named / source.folder, named)
    best = min(candidates, key=lambda folder: len(_missing(folder)))
    if missing := _missing(best):
        raise DataError(
            f"{source.title} is not complete in {named}: put {', '.join(missing)} there or into its folder "
            f"{source.folder}"
        )
    return best


def _missing(folder: Path) -> list[str]:
    return [name for name in NAMES if not (folder / name).is_file()]


def _download(source: Source, name: str, md5: str, folder: Path) -> None:
    from gradwire.job.data.download import fetch  # http and TLS, which a mistyped option need not wait for

    try:
        fetch(source.mirror + name, md5, folder / name)
    except DataError as error:
        raise DataError(
            f"{error}; without a network put {', '.join(NAMES)} of {source.title} into a folder and name it "
            "with --data-dir, or use --data digits"
        ) from error
