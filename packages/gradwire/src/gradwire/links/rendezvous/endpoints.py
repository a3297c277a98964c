"""Where the ranks of a link listen, as each publishes it in a store."""

from __future__ import annotations

import ipaddress
import secrets
import struct
from collections.abc import Sequence
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from gradwire.errors import LinkError, LinkTimeoutError, shown
from gradwire.launch.store import TimedStore

TOKEN_NBYTES = 16
_MOST_PORT = 65535


class NotInTimeError(LinkTimeoutError):
    """What a rank has not done; how long it had for that, and ``advice``, belong behind it."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


class Endpoint(NamedTuple):
    """Where and how one rank listens; whoever connects to it has to know the token."""

    address: str
    port: int
    token: bytes
    encrypts: bool


class Endpoints:
    """What the ranks of one link publish, as one of them reads it until ``deadline``.

    ``names`` are what errors call the ranks. Every method raises ``LinkError`` where the store is gone or
    does not answer, or holds what no rank publishes.
    """

    def __init__(self, store: Store, doing: str, deadline: float, names: Sequence[str]) -> None:
        self.names = names
        self._store, self._deadline = TimedStore(store, doing), deadline
        self._found: dict[int, Endpoint] = {}

    def publish(self, rank: int, endpoint: Endpoint) -> None:
        """Let the others know where this rank listens."""
        text = f"{endpoint.address} {endpoint.port} {endpoint.token.hex()} {int(endpoint.encrypts)}"
        self._store.set(_key(rank), text, self._deadline)

    def wait_for(self, rank: int) -> Endpoint:
        """Return where ``rank`` listens. Raises ``TimeoutError`` where it does not publish that."""
        self._store.wait([_key(rank)], self._deadline)
        endpoint = self.find(rank)
        assert endpoint is not None
        return endpoint

    def find(self, rank: int) -> Endpoint | None:
        """Return where ``rank`` listens, None while it has not published that."""
        if rank not in self._found and self._store.has([_key(rank)], self._deadline):
            self._found[rank] = _parsed(self._store.get(_key(rank), self._deadline), rank)
        return self._found.get(rank)

    def absent(self) -> list[str]:
        """Return the names of the ranks that have published nothing; none where the store does not answer."""
        try:
            return [
                name
                for rank, name in enumerate(self.names)
                if self._store.answers and self.find(rank) is None
            ]
        except LinkError:
            return []


def _key(rank: int) -> str:
    return f"rank {rank}"


def _parsed(text: str, rank: int) -> Endpoint:
    try:
        address, port, token, encrypts = text.split()
        ipaddress.ip_address(address)
        endpoint = Endpoint(address, int(port), bytes.fromhex(token), {"0": False, "1": True}[encrypts])
        if len(endpoint.token) != TOKEN_NBYTES or not 1 <= endpoint.port <= _MOST_PORT:
            raise ValueError
    except (ValueError, KeyError) as error:
        raise LinkError(
            f"torch's store holds {shown(text)} under {_key(rank)!r}, which no rank of gradwire has written; "
            "find out who else writes to that store"
        ) from error
    return endpoint


# What a rank sends first on a connection that it makes: the listening rank's token, and its own number.
#
# Only the store that the ranks share can have told it the token. A connection that carries nothing but
# float32 begins with float32, too: a power of two from 1 to 2^15 for every four bits, which no NIC on the way
# changes.

_HELLO = struct.Struct(f"<{TOKEN_NBYTES}sI")
_FLOATS = struct.Struct(f"<{2 * _HELLO.size}f")


def nbytes(tos: int = 0) -> int:
    """Return the length of a hello on connections with this type of service."""
    return (_FLOATS if tos else _HELLO).size


def hello(token: bytes, rank: int, tos: int = 0) -> bytes:
    """Return what ``rank`` sends to the owner of the token, who answers with the same of itself, in TLS.

    On a connection that is marked with a type of service, it is float32.
    """
    said = _HELLO.pack(token, rank)
    if not tos:
        return said
    return _FLOATS.pack(*(2.0 ** (byte >> shift & 15) for byte in said for shift in (4, 0)))


def rank_of(received: bytes, token: bytes, wanted: range, tos: int = 0) -> int | None:
    """Return which of the ranks ``wanted`` sends this to the owner of ``token``, None if none does."""
    if len(received) < nbytes(tos):
        return None
    said = _said(received) if tos else received
    rank: int = _HELLO.unpack(said)[1]
    return rank if rank in wanted and secrets.compare_digest(received, hello(token, rank, tos)) else None


def _said(received: bytes) -> bytes:
    """Return the bytes whose float32 these are, if they are any."""
    exponents = [(word >> 23) - 127 & 15 for (word,) in struct.iter_unpack("<I", received)]
    return bytes(high << 4 | low for high, low in zip(exponents[::2], exponents[1::2], strict=True))
