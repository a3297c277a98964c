"""Small exchanges between two steps: rows of numbers, means, and typed records from rank 0.

A record is a 12-byte header (a magic number, the version of the encoding, the type of the record, the length
of the body), then a body in JSON. Both are payloads of ordinary frames, so checksums protect them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from gradwire.errors import ExchangeError, shown
from gradwire.exchange import Exchange
from gradwire.fields import Kind, Source, to_values
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.wire import memory_of

T_co = TypeVar("T_co", covariant=True)
VERSION = 1
MOST_NBYTES = 1 << 24
"""The largest body in bytes, many times that of a decision for a model of thousands of parameters."""
_MAGIC = b"GRDR"
_HEAD = struct.Struct("<4sHHI")
_PAIRWISE = Plan(algorithm="pairwise")
"""The plan for rows: their exchange takes two latencies, whatever the number of ranks."""
_TREE = Plan(algorithm="tree")  # the plan for records: its broadcast half starts at rank 0
_ADVICE = "use the same version of gradwire on all ranks"


def gather(exchange: Exchange, row: Sequence[float], timeout_s: float | None = None) -> list[list[float]]:
    """Return the rows of all ranks, in rank order, as float32; all ranks pass rows of the same length."""
    link = exchange.link
    rows = torch.zeros(link.world, len(row), dtype=torch.float32, device="cpu")
    rows[link.rank] = torch.tensor(row, dtype=torch.float32, device="cpu")
    # The sum is exact, because at most one term of each value is not 0.
    Exchange(link, _PAIRWISE).all_reduce(rows.view(-1), average=False, timeout_s=timeout_s)
    return rows.tolist()


def mean(exchange: Exchange, values: torch.Tensor, timeout_s: float) -> None:
    """Average a 1-D float32 tensor in place, with the same bits on all ranks. Raises ``ExchangeError``."""
    if values.numel():
        Exchange(exchange.link, Plan()).all_reduce(values, timeout_s=timeout_s)


@dataclass(frozen=True)
class Record(Generic[T_co]):
    """A type of record that rank 0 sends."""

    number: int  # in the header, from 1 to 65535, the same on all ranks
    what: str  # names the record in errors
    kind: Kind[T_co]  # validates the value that a rank receives

    def pack(self, value: object) -> bytes:
        """Return a record with ``value``, which ``to_values`` converts."""
        body = json.dumps(to_values(value)).encode()
        return _HEAD.pack(_MAGIC, VERSION, self.number, len(body)) + body

    def open(self, head: bytes) -> int:
        """Validate a header, and return the length of the body after it. Raises ``ExchangeError``."""
        magic, version, number, nbytes = _HEAD.unpack(head)
        for name, expected, got in (
            ("that starts with", _MAGIC, magic),
            ("of version", VERSION, version),
            ("of type", self.number, number),
        ):
            if got != expected:
                raise ExchangeError(f"{self._expected} {name} {expected!r}, got {got!r}; {_ADVICE}")
        if not 0 < nbytes <= MOST_NBYTES:
            raise ExchangeError(f"{self._expected} of 1 to {MOST_NBYTES} bytes, got {nbytes}; {_ADVICE}")
        return int(nbytes)

    def read(self, body: bytes) -> T_co:
        """Return the validated value in a body. Raises ``ExchangeError``."""
        source = Source(f"{self.what} from rank 0", _ADVICE, ExchangeError)
        try:
            return source.of_json(body.decode(), self.kind)
        except UnicodeDecodeError as error:
            raise ExchangeError(f"{self._expected} in UTF-8, got {shown(body)}; {_ADVICE}") from error

    @property
    def _expected(self) -> str:
        return f"{self.what} from rank 0: expected a record"


def broadcast(exchange: Exchange, record: Record[T_co], value: object, timeout_s: float) -> T_co:
    """Return rank 0's value on all ranks, as the record's kind validates it. Raises ``ExchangeError``."""
    own = record.pack(value) if exchange.link.rank == 0 else b""
    head = _send(exchange, own[: _HEAD.size], _HEAD.size, timeout_s)
    return record.read(_send(exchange, own[_HEAD.size :], record.open(head), timeout_s))


def _send(exchange: Exchange, data: bytes, nbytes: int, timeout_s: float) -> bytes:
    """Return rank 0's ``data`` of ``nbytes`` bytes on all ranks; the other ranks pass ``b""``."""
    words = torch.zeros(-(-nbytes // FLOAT_NBYTES), dtype=torch.float32, device="cpu")
    memory = memory_of(words.view(torch.uint8))
    memory[: len(data)] = data
    Exchange(exchange.link, _TREE).broadcast(words, timeout_s=timeout_s)
    return bytes(memory[:nbytes])
