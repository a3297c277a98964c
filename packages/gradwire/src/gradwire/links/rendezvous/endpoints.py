"""The endpoints that a link's ranks publish in a store, and the hello that starts a connection."""

from __future__ import annotations

import ipaddress
import secrets
import struct
from collections.abc import Sequence
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from gradwire.errors import LinkError, LinkTimeoutError, shown
from gradwire.launch.listening import address_key, listening_address
from gradwire.launch.store import TimedStore

TOKEN_NBYTES = 16
_MOST_PORT = 65535


class NotInTimeError(LinkTimeoutError):
    """An error for a missed deadline; the caller appends the timeout and ``advice``."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


class Endpoint(NamedTuple):
    """The address of a listening rank, and the token that starts a connection to it."""

    address: str
    port: int
    token: bytes
    encrypts: bool


class Endpoints:
    """The endpoints that a link's ranks publish, as one rank reads them until ``deadline``.

    Every method raises ``LinkError`` if the store is gone, does not answer, or holds invalid data.
    """

    def __init__(self, store: Store, doing: str, deadline: float, names: Sequence[str]) -> None:
        self.names = names
        self._store, self._deadline = TimedStore(store, doing), deadline
        self._found: dict[int, Endpoint] = {}

    def listening_address(self, rank: int, lane: int) -> str:
        """Return the address on which this rank's lane listens. Raises ``TimeoutError`` at the deadline."""
        return listening_address(self._store, rank, len(self.names), self._deadline, lane)

    def publish(self, rank: int, endpoint: Endpoint) -> None:
        """Publish the endpoint of this rank."""
        text = f"{endpoint.address} {endpoint.port} {endpoint.token.hex()} {int(endpoint.encrypts)}"
        self._store.set(_key(rank), text, self._deadline)

    def wait_for(self, ranks: Sequence[int]) -> list[Endpoint]:
        """Wait for the endpoints of ``ranks`` and return them. Raises ``TimeoutError`` at the deadline."""
        texts = self._store.get([_key(rank) for rank in ranks], self._deadline)
        self._found |= {rank: _parsed(text, rank) for rank, text in zip(ranks, texts, strict=True)}
        return [self._found[rank] for rank in ranks]

    def find(self, rank: int) -> Endpoint | None:
        """Return the endpoint of ``rank``; None if ``rank`` has not published its endpoint yet."""
        if rank not in self._found and (text := self._store.find(_key(rank), self._deadline)) is not None:
            self._found[rank] = _parsed(text, rank)
        return self._found.get(rank)

    def absent(self) -> list[str]:
        """Return the names of the ranks that published nothing; [] if the store does not answer."""
        try:
            return [
                name for rank, name in enumerate(self.names) if self._store.answers and self._is_absent(rank)
            ]
        except LinkError:
            return []

    def _is_absent(self, rank: int) -> bool:
        return self.find(rank) is None and not self._store.has([address_key(rank)], self._deadline)


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
            f"expected an endpoint under {_key(rank)!r} in torch's store, got {shown(text)}; look for "
            "another program that writes to this store"
        ) from error
    return endpoint


# The hello: the first bytes on a new connection, which are the listening rank's token and the sender's rank.
#
# Only a rank that reads the shared store knows the token. A connection that carries only float32 also starts
# with float32: a power of two from 1 to 2^15 for every four bits, which no NIC changes.

_HELLO = struct.Struct(f"<{TOKEN_NBYTES}sI")
_FLOATS = struct.Struct(f"<{2 * _HELLO.size}f")


def nbytes(tos: int = 0) -> int:
    """Return the length of a hello in bytes, on connections with this type of service."""
    return (_FLOATS if tos else _HELLO).size


def hello(token: bytes, rank: int, tos: int = 0) -> bytes:
    """Return the hello of ``rank`` to the owner of ``token``; float32 on a connection marked with ``tos``."""
    plain = _HELLO.pack(token, rank)
    if not tos:
        return plain
    return _FLOATS.pack(*(2.0 ** (byte >> shift & 15) for byte in plain for shift in (4, 0)))


def rank_of(received: bytes, token: bytes, ranks: range, tos: int = 0) -> int | None:
    """Return the rank in a hello to the owner of ``token``; None for an invalid hello or rank."""
    if len(received) < nbytes(tos):
        return None
    rank: int = _HELLO.unpack(_from_floats(received) if tos else received)[1]
    return rank if rank in ranks and secrets.compare_digest(received, hello(token, rank, tos)) else None


def _from_floats(received: bytes) -> bytes:
    """Return the bytes of a hello that was sent as float32."""
    exponents = [(word >> 23) - 127 & 15 for (word,) in struct.iter_unpack("<I", received)]
    return bytes(high << 4 | low for high, low in zip(exponents[::2], exponents[1::2], strict=True))
