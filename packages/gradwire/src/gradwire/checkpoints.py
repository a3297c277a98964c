"""Checkpoints: files in the format of ``torch.save``, one per rank, with a checksum over all bytes.

The checksum is the comment of the zip archive that ``torch.save`` writes, so ``torch.load`` and any zip tool
can still read the file. The checksum detects a flipped bit in a weight or in an optimizer's moments. Without
a checksum, the wrong value would load, and replicas would diverge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from gradwire import _native
from gradwire.deferred import outside_inference, torch
from gradwire.errors import StateError, refuse
from gradwire.fields import Source, mapping
from gradwire.files import open_ordinary, write_files

_MARK = b"gradwire checkpoint 1, crc32c "
"""The start of the archive's comment. The CRC32C of all preceding bytes follows, in 8 hexadecimal digits."""
_DIGITS = 8
_COMMENT_NBYTES = len(_MARK) + _DIGITS
_PART_NBYTES = 1 << 24  # the bytes read at a time to compute a checksum: few system calls, and little memory


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write one rank's state to a file, atomically and with a checksum.

    A temporary file is written to the folder of ``path``, synced to the disk, and renamed to ``path``. Each
    rank writes a file of its own, because residuals and gradients in flight differ between ranks.

    Parameters
    ----------
    path
        The file to write. Its folder is created, and an older file is replaced.
    state
        A dictionary for ``torch.save``, such as the ``state_dict()`` of the model, the optimizer, the
        schedulers, and the object that ``attach`` or a method returned.

    Raises
    ------
    SpecError
        For a state that isn't a dictionary.
    JobError
        For a file that can't be written.

    Examples
    --------
    >>> parts = {"model": model, "optimizer": optimizer, "gradwire": attached}  # doctest: +SKIP
    >>> state = {name: part.state_dict() for name, part in parts.items()}  # doctest: +SKIP
    >>> gradwire.save_checkpoint(f"checkpoint-{rank}.pt", state)  # doctest: +SKIP
    """
    if not isinstance(state, Mapping):
        refuse("a dictionary of states", state, 'name each part, as in {"model": model.state_dict()}')
    write_files({Path(path): summed(dict(state))})


@outside_inference
def load_checkpoint(
    path: str | os.PathLike[str], *, map_location: Any = "cpu", weights_only: bool = True
) -> dict[str, Any]:
    """Return the state in a file written by ``save_checkpoint``, after verifying its checksum.

    Parameters
    ----------
    path
        The file to read.
    map_location
        The devices for tensors, as in ``torch.load``. Residuals and the states of random number generators
        belong on the CPU; a model's or optimizer's ``load_state_dict`` copies tensors to the right device.
    weights_only
        Whether to accept only tensors, numbers, strings, and containers of them, as in ``torch.load``. Pass
        False to read other objects, only from a file that you trust, because reading such objects runs code.

    Raises
    ------
    StateError
        For a file that is missing, damaged, truncated, or without a checksum. The message names the file.
    """
    try:
        with open_ordinary(path) as file:  # reading a pipe would block forever
            _verify(file, path)
            return _read(file, path, map_location, weights_only)
    except OSError as error:
        raise StateError(
            f"the checkpoint {os.fspath(path)} cannot be read: {error.strerror or error}; pass a file "
            "written by save_checkpoint"
        ) from error


def summed(content: object) -> Callable[[BinaryIO], None]:
    """Return a function that writes ``content`` by ``torch.save`` with a checksum, for ``write_files``."""
    return partial(_write, content)


def check_summed(path: str | os.PathLike[str]) -> None:
    """Raise ``StateError`` if a file doesn't match its checksum; files of older versions have none."""
    with open_ordinary(path) as file:  # reading a pipe would block forever
        if _comment(file).startswith(_MARK):
            _verify(file, path)


def _write(content: object, file: BinaryIO) -> None:
    try:
        torch.save(content, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # such as a full disk, which torch misreports
            raise error.__context__ from error
        raise
    file.seek(-2, os.SEEK_END)  # the length of the archive's comment, which is still 0
    file.write(_COMMENT_NBYTES.to_bytes(2, "little") + _MARK)
    file.write(_digits(file, file.tell()))


def _comment(file: BinaryIO) -> bytes:
    file.seek(max(file.seek(0, os.SEEK_END) - _COMMENT_NBYTES, 0))
    return file.read()


def _verify(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    comment = _comment(file)
    if not comment.startswith(_MARK):
        raise StateError(
            f"the checkpoint {os.fspath(path)} has no checksum, so it is truncated, damaged, or from "
            "another program; use another checkpoint, or torch.load for a file from torch.save"
        )
    if comment[len(_MARK) :] != _digits(file, file.tell() - _DIGITS):
        raise StateError(
            f"the checkpoint {os.fspath(path)} is damaged: its checksum doesn't match its content; use "
            "another checkpoint, and check this host's disk and memory"
        )


def _read(
    file: BinaryIO, path: str | os.PathLike[str], map_location: Any, weights_only: bool
) -> dict[str, Any]:
    file.seek(0)
    try:
        state: dict[str, Any] = torch.load(file, map_location=map_location, weights_only=weights_only)
    except Exception as error:  # torch may raise any exception, for example for a missing device
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"the checkpoint {os.fspath(path)} is intact, but torch.load cannot read it: {reason}; use the "
            "version of torch that wrote the file, or pass map_location (for devices) or "
            "weights_only=False (for other objects)"
        ) from error
    return state


def _digits(file: BinaryIO, nbytes: int) -> bytes:
    crc, room = 0, bytearray(min(nbytes, _PART_NBYTES))
    part, into = torch.frombuffer(room, dtype=torch.uint8), memoryview(room)
    file.seek(0)
    while nbytes:
        count = file.readinto(into[: min(nbytes, _PART_NBYTES)])  # type: ignore[attr-defined]
        if not count:
            raise OSError("it was truncated while it was read")
        crc, nbytes = _native.crc32c(part[:count], crc), nbytes - count
    return b"%08x" % crc


# Checksums in saved texts and records, which detect flipped bits.

SUM = "crc32c"
"""The key of the checksum in a JSON object or a record."""
_LEAVES = (bool, int, float, complex, str, bytes)


def of_tensor(tensor: torch.Tensor) -> int:
    """Return the CRC32C of the bytes of a tensor on any device."""
    return _native.crc32c(bytes_of(tensor.detach().cpu()))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a CPU tensor in element order, without a copy if possible."""
    flat = tensor.resolve_conj().contiguous().view(-1)
    if flat.stride(0) != 1:  # one element counts as contiguous with any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return ``content`` as JSON text to which a checksum is added."""
    return json.dumps(sealed_json(json.loads(json.dumps(content, default=float))))


def sealed_json(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a checksum added; ``is_as_sealed`` verifies the checksum."""
    return {**body, SUM: _of_text(body)}


def opened_text(text: str) -> tuple[dict[str, Any], bool]:
    """Return the JSON object in ``text``, and whether it had a checksum. Raises ``StateError`` if damaged."""
    body = Source("a JSON text", "use another text", StateError).of_json(text, mapping)
    if not is_as_sealed(body):
        raise StateError("its text doesn't match its checksum")
    return body, body.pop(SUM, None) is not None


def is_as_sealed(body: Mapping[str, Any]) -> bool:
    """Return whether a JSON object matches its checksum, or has no checksum."""
    content = {key: value for key, value in body.items() if key != SUM}
    return SUM not in body or body[SUM] == _of_text(content)


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record (dictionaries of tensors, numbers and strings) with a checksum added."""
    return {**record, SUM: _of_text({"content": _plain(record)})}


def check_sealed(record: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a record's content without its checksum, which earlier versions didn't add.

    Raises ``StateError`` if the checksum doesn't match; ``what`` names the record in the error.
    """
    content = {key: value for key, value in record.items() if key != SUM}
    if SUM in record and not _has_sum(content, record[SUM]):
        raise StateError(
            f"{what} do not match their checksum; use another checkpoint or, after a manual change, remove "
            f"the entry {SUM!r}"
        )
    return content


def _of_text(body: Mapping[str, Any]) -> int:
    return _native.crc32c_of_bytes(json.dumps(body, sort_keys=True).encode())


def _has_sum(content: Mapping[str, Any], expected: object) -> bool:
    try:
        return any(expected == _of_text({"content": _plain(content, before=each)}) for each in (False, True))
    except (RuntimeError, TypeError, ValueError):  # for example, a tensor without memory
        return False


def _plain(content: object, *, before: bool = False) -> object:
    """Convert content to JSON values that saving and loading don't change. A tensor becomes its checksum.

    An object of any other type becomes the name of its type, because its ``repr`` may contain an address.
    With ``before``, convert as earlier versions did, with the abbreviated ``repr`` of tensors in lists.
    """
    if isinstance(content, torch.Tensor):
        return [str(content.dtype), list(content.shape), of_tensor(content)]
    if isinstance(content, Mapping):
        return {str(key): _plain(value, before=before) for key, value in content.items()}
    if before:
        return repr(content)
    if isinstance(content, list | tuple):
        return [_plain(each) for each in content]
    return repr(content) if content is None or type(content) in _LEAVES else type(content).__name__
