"""Fetch a file into the cache: checked against its published MD5, and there only when it is whole."""

from __future__ import annotations

import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from gradwire.errors import DataError
from gradwire.job.data.checksum import md5_of

BLOCK_NBYTES = 1 << 16


def fetch(url: str, md5: str, target: Path, timeout_s: float = 30.0) -> None:
    """Download ``url`` to ``target``. Raises ``DataError``; then ``target`` is as it was.

    The bytes go to a temporary name beside ``target`` and are renamed when their MD5 is right, so that a cut
    connection, a full disk or a second process at the same work leaves no half-written file.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            received = _copy(url, file.write, timeout_s)
        found = md5_of(Path(name))
        if found != md5:
            raise DataError(f"{url} sent {received} bytes with MD5 {found}, but {md5} is expected")
        os.replace(name, target)
    except OSError as error:  # of the disk: those of the network are DataError already
        raise DataError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _copy(url: str, write: Callable[[bytes], object], timeout_s: float) -> int:
    received = 0
    try:
        response = urllib.request.urlopen(url, timeout=timeout_s)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"cannot fetch {url}: {_reason(error)}") from error
    with response:
        while block := _read(response, url, received):
            write(block)
            received += len(block)
    announced = response.headers.get("Content-Length")
    if announced is not None and received != int(announced):
        raise DataError(f"cannot fetch {url}: the connection ended after {received} of {announced} bytes")
    return received


def _read(response: http.client.HTTPResponse, url: str, received: int) -> bytes:
    try:
        return response.read(BLOCK_NBYTES)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"cannot fetch {url}: {_reason(error)} after {received} bytes") from error


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
