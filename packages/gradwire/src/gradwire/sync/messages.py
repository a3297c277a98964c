"""Typed records that rank 0 sends to all ranks between two steps.

A record is a 12-byte header, then a body. The header contains a magic number, the version of the encoding,
the type of the record, and the length of the body. The body is MessagePack (https://msgpack.org) with these
formats: nil, booleans, 64-bit integers, float64, strings, arrays, and maps with strings as keys. Header and
body are the payloads of ordinary frames, which have checksums.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from gradwire.errors import ExchangeError, shown
from gradwire.exchange import Exchange
from gradwire.fields import Kind, Source, to_values
from gradwire.plan import FLOAT_NBYTES, Plan

T_co = TypeVar("T_co", covariant=True)
VERSION = 1
MOST_NBYTES = 1 << 24
"""The largest body in bytes.

A decision for a model of thousands of parameters needs a small part of it.
"""
_MAGIC = b"GRDR"
_HEAD = struct.Struct("<4sHHI")
_PLAN = Plan(algorithm="tree")  # its broadcast half starts at rank 0
_ADVICE = "use the same version of gradwire on all ranks"


@dataclass(frozen=True)
class Record(Generic[T_co]):
    """A type of record.

    Attributes
    ----------
    number
        The type's number in the header, from 1 to 65535; all ranks use the same number for the same exchange.
    what
        The name of the record in errors.
    kind
        The kind of its value (``gradwire.fields``), which validates what a rank receives.
    """

    number: int
    what: str
    kind: Kind[T_co]

    def pack(self, value: object) -> bytes:
        """Return a record with ``value``, which ``to_values`` converts."""
        body = pack(to_values(value))
        return _HEAD.pack(_MAGIC, VERSION, self.number, len(body)) + body

    def open(self, head: bytes) -> int:
        """Return the length of the body that follows this header. Raises ``ExchangeError``."""
        magic, version, number, nbytes = _HEAD.unpack(head)
        for name, expected, got in (
            ("that starts with", _MAGIC, magic),
            ("of version", VERSION, version),
            ("of type", self.number, number),
        ):
            if got != expected:
                raise ExchangeError(f"{self._expected} {name} {expected}, got {got}; {_ADVICE}")
        if not 0 < nbytes <= MOST_NBYTES:
            raise ExchangeError(f"{self._expected} of 1 to {MOST_NBYTES} bytes, got {nbytes}; {_ADVICE}")
        return nbytes

    def read(self, body: bytes) -> T_co:
        """Return the validated value in a body. Raises ``ExchangeError``."""
        try:
            values = unpack(body)
        except ValueError as error:
            raise ExchangeError(f"{self._expected} in MessagePack, got {error}; {_ADVICE}") from error
        return Source(f"{self.what} from rank 0", _ADVICE, ExchangeError).read(values, self.kind)

    @property
    def _expected(self) -> str:
        return f"{self.what} from rank 0: expected a record"


def broadcast(exchange: Exchange, record: Record[T_co], value: object, timeout_s: float) -> T_co:
    """Return rank 0's value on all ranks, as the record's kind validates it. Raises ``ExchangeError``."""
    own = record.pack(value) if exchange.link.rank == 0 else b""
    head = _send(exchange, own[: _HEAD.size], _HEAD.size, timeout_s)
    return record.read(_send(exchange, own[_HEAD.size :], record.open(head), timeout_s))


def _send(exchange: Exchange, data: bytes, nbytes: int, timeout_s: float) -> bytes:
    """Return rank 0's ``data`` of ``nbytes`` bytes on all ranks; the other ranks pass nothing."""
    words = torch.zeros(-(-nbytes // FLOAT_NBYTES), dtype=torch.float32, device="cpu")
    memory = memoryview(words.view(torch.uint8).numpy())
    memory[: len(data)] = data
    Exchange(exchange.link, _PLAN).broadcast(words, timeout_s=timeout_s)
    return bytes(memory[:nbytes])


# MessagePack: each value has a format byte, which includes small numbers and lengths.

_NIL, _FALSE, _TRUE, _FLOAT, _INT = 0xC0, 0xC2, 0xC3, 0xCB, 0xD3
_STR, _ARRAY, _MAP = 0xDB, 0xDD, 0xDF  # with 32-bit lengths
_FIX_MAP, _FIX_ARRAY, _FIX_STR = 0x80, 0x90, 0xA0  # plus a length below 16, 16, and 32
_SIMPLE = {_NIL: None, _FALSE: False, _TRUE: True}
_FORMAT_OF = {value: form for form, value in _SIMPLE.items()}
_DEEPEST = 16
"""The deepest nesting of arrays and maps, above that of any record."""


def pack(values: object) -> bytes:
    """Return a value of ``to_values`` as MessagePack. Raises ``TypeError`` for a value of another type."""
    if values is None or isinstance(values, bool):
        return bytes([_FORMAT_OF[values]])
    if isinstance(values, int):
        return bytes([values]) if 0 <= values < 1 << 7 else struct.pack(">Bq", _INT, values)
    if isinstance(values, float):
        return struct.pack(">Bd", _FLOAT, values)
    if isinstance(values, str):
        text = values.encode()
        return _length(len(text), 32, _FIX_STR, _STR) + text
    if isinstance(values, list):
        return _length(len(values), 16, _FIX_ARRAY, _ARRAY) + b"".join(map(pack, values))
    if isinstance(values, dict):
        entries = b"".join(pack(str(name)) + pack(each) for name, each in values.items())
        return _length(len(values), 16, _FIX_MAP, _MAP) + entries
    raise TypeError(f"expected a value of to_values, got a {type(values).__name__}")


def _length(count: int, limit: int, small: int, large: int) -> bytes:
    return bytes([small | count]) if count < limit else struct.pack(">BI", large, count)


def unpack(data: bytes) -> Any:
    """Return the value in ``data``, in the formats that ``pack`` writes. Raises ``ValueError``."""
    unpacker = _Unpacker(data)
    value = unpacker.value(_DEEPEST)
    if rest := unpacker.rest:
        raise ValueError(f"{rest} bytes after the value")
    return value


class _Unpacker:
    def __init__(self, data: bytes) -> None:
        self._data, self.rest = data, len(data)

    def value(self, depth: int) -> Any:
        """Read the next value, with at most this depth of nesting."""
        form = self._take(1)[0]
        if form < 1 << 7:
            return form
        if form in _SIMPLE:
            return _SIMPLE[form]
        if form in (_FLOAT, _INT):
            return struct.unpack(">d" if form == _FLOAT else ">q", self._take(8))[0]
        if form == _STR or form & 0xE0 == _FIX_STR:
            return self._text(self._count(form, _STR, 32))
        is_map = form == _MAP or form & 0xF0 == _FIX_MAP
        if not (is_map or form == _ARRAY or form & 0xF0 == _FIX_ARRAY):
            raise ValueError(f"the format {form:#x}")
        if not depth:
            raise ValueError(f"more than {_DEEPEST} levels of nesting")
        count = self._count(form, _MAP if is_map else _ARRAY, 16)
        if not is_map:
            return [self.value(depth - 1) for _ in range(count)]
        found = dict[str, Any]()
        for _ in range(count):
            name = self.value(0)
            if not isinstance(name, str) or name in found:
                raise ValueError(f"the name {shown(name)}, which is repeated or not a string")
            found[name] = self.value(depth - 1)
        return found

    def _text(self, nbytes: int) -> str:
        try:
            return self._take(nbytes).decode()
        except UnicodeDecodeError as error:
            raise ValueError("a string that isn't UTF-8") from error

    def _count(self, form: int, large: int, limit: int) -> int:
        """Return a length, which can't exceed the remaining bytes, because each item has at least one."""
        count: int = struct.unpack(">I", self._take(4))[0] if form == large else form % limit
        if count > self.rest:
            raise ValueError(f"a length of {count} with {self.rest} bytes left")
        return count

    def _take(self, nbytes: int) -> bytes:
        if nbytes > self.rest:
            raise ValueError(f"{self.rest} bytes instead of {nbytes} at the end")
        start = len(self._data) - self.rest
        self.rest -= nbytes
        return self._data[start : start + nbytes]
