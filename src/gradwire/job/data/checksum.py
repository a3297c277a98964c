"""The checksum that published data sets are listed with."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gradwire.errors import DataError


def md5_of(path: Path) -> str:
    """Return the MD5 of a file in hexadecimal. Raises ``DataError``."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, _new_md5).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _new_md5() -> hashlib._Hash:
    """Return the checksum that published data sets are listed with."""
    return hashlib.md5(usedforsecurity=False)  # a checksum against accidents, as the data sets publish it
