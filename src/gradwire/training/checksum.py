"""Checksums beside what gradwire saves, so that a flipped bit is an error and not another model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from gradwire import _native
from gradwire.errors import StateError

SUM = "crc32c"
"""The key under which a text or a record keeps its own checksum."""


def of_tensor(tensor: torch.Tensor) -> int:
    """Return the CRC32C of a tensor's values, wherever it lies."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return _native.crc32c(flat.view(torch.uint8))


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return ``content`` as JSON, with a checksum of its own."""
    body = json.loads(json.dumps(content, default=float))
    return json.dumps({**body, SUM: _of_text(body)})


def opened_text(text: str) -> tuple[dict[str, Any], bool]:
    """Return what is in a text, and whether a checksum was; ``ValueError`` where that is another one."""
    body: dict[str, Any] = json.loads(text)
    if SUM not in body:
        return body, False
    saved = body.pop(SUM)
    if saved != _of_text(body):
        raise ValueError("its text has another checksum than when it was saved")
    return body, True


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of tensors, numbers and texts, in dictionaries, with a checksum of its own."""
    return {**record, SUM: _of(record)}


def check_sealed(record: Mapping[str, Any], what: str) -> None:
    """Raise ``StateError`` where a record has a checksum, and it is of something else."""
    if SUM in record and record[SUM] != _of({key: value for key, value in record.items() if key != SUM}):
        raise StateError(
            f"{what} are not what was saved: their checksum is another one; take another checkpoint, and "
            "look at the disk"
        )


def _of_text(body: Mapping[str, Any]) -> int:
    return _native.crc32c_of_bytes(json.dumps(body, sort_keys=True).encode())


def _of(content: object) -> int:
    return _of_text({"content": _plain(content)})


def _plain(content: object) -> object:
    """Return what JSON can hold: a tensor as its type, shape and checksum."""
    if isinstance(content, torch.Tensor):
        return [str(content.dtype), list(content.shape), of_tensor(content)]
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    return repr(content)
