"""Checksums beside what gradwire saves, so that a flipped bit is an error and not another model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gradwire import _native
from gradwire.deferred import torch
from gradwire.errors import StateError
from gradwire.fields import Source, mapping

SUM = "crc32c"
"""The key under which a text or a record keeps its own checksum."""
_LEAVES = (bool, int, float, complex, str, bytes)


def of_tensor(tensor: torch.Tensor) -> int:
    """Return the CRC32C of a tensor's values, wherever it lies."""
    return _native.crc32c(bytes_of(tensor.detach().cpu()))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor on the CPU, in the order of its elements: of its own memory, if it can."""
    flat = tensor.resolve_conj().contiguous().view(-1)
    if flat.stride(0) != 1:  # one element counts as contiguous with any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return ``content`` as JSON, with a checksum of its own."""
    return json.dumps(sealed_json(json.loads(json.dumps(content, default=float))))


def sealed_json(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON with a checksum of its own, which ``is_as_sealed`` compares."""
    return {**body, SUM: _of_text(body)}


def opened_text(text: str) -> tuple[dict[str, Any], bool]:
    """Return the JSON object in a text, and whether it had a checksum. Raises ``StateError``."""
    body = Source("a text", "take another", StateError).of_json(text, mapping)
    if not is_as_sealed(body):
        raise StateError("its text has another checksum than when it was saved")
    return body, body.pop(SUM, None) is not None


def is_as_sealed(body: Mapping[str, Any]) -> bool:
    """Return whether the object of a text has its own checksum, or none."""
    content = {key: value for key, value in body.items() if key != SUM}
    return SUM not in body or body[SUM] == _of_text(content)


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of tensors, numbers and texts, in dictionaries, with a checksum of its own."""
    return {**record, SUM: _of(_plain(record))}


def check_sealed(record: Mapping[str, Any], what: str) -> None:
    """Raise ``StateError`` where a record has a checksum, and it is of something else."""
    opened(record, what)


def opened(record: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a record without its checksum. Raises ``StateError`` where that is of something else.

    A record without a checksum, as earlier versions wrote, is returned as it is.
    """
    content = {key: value for key, value in record.items() if key != SUM}
    if SUM in record and not _has_sum(content, record[SUM]):
        raise StateError(
            f"{what} are not what was saved: their checksum is another one; take another checkpoint, and "
            f"look at the disk (after a change by hand, remove {SUM!r})"
        )
    return content


def _of_text(body: Mapping[str, Any]) -> int:
    return _native.crc32c_of_bytes(json.dumps(body, sort_keys=True).encode())


def _has_sum(content: Mapping[str, Any], wanted: object) -> bool:
    try:
        return wanted == _of(_plain(content)) or wanted == _of(_plain_before(content))
    except (RuntimeError, TypeError, ValueError):  # a tensor without memory, say, which nobody has sealed
        return False


def _of(plain: object) -> int:
    return _of_text({"content": plain})


def _plain(content: object) -> object:
    """Return what JSON can hold, the same after ``torch.save`` or JSON: a tensor as its checksum.

    Of other objects only the type counts, because their ``repr`` may hold an address.
    """
    if isinstance(content, torch.Tensor):
        return _facts(content)
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(each) for each in content]
    return repr(content) if content is None or type(content) in _LEAVES else type(content).__name__


def _plain_before(content: object) -> object:
    """Do the same as earlier versions, which saw few digits of tensors in lists."""
    if isinstance(content, torch.Tensor):
        return _facts(content)
    if isinstance(content, Mapping):
        return {str(key): _plain_before(value) for key, value in content.items()}
    return repr(content)


def _facts(tensor: torch.Tensor) -> list[object]:
    return [str(tensor.dtype), list(tensor.shape), of_tensor(tensor)]
