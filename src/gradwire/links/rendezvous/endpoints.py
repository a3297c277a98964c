"""Where the ranks of a link listen, as each publishes it in a store."""

from __future__ import annotations

import ipaddress
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
