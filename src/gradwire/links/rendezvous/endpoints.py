"""Where the ranks of a link listen, as each tells the others in a store."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from gradwire.errors import LinkError, shown
from gradwire.launch.store import TimedStore

WORD_NBYTES = 16
_MOST_PORT = 65535


class Place(NamedTuple):
    """What a rank tells of itself."""

    address: str
    port: int
    word: bytes
    encrypts: bool


class Places:
    """What the ranks of one meeting tell, and what one of them hears of it until ``deadline``.

    Every method raises ``LinkError`` where the store is gone or does not answer, or holds what no rank tells.
    """

    def __init__(self, store: Store, doing: str, deadline: float) -> None:
        self._store, self._deadline = TimedStore(store, doing), deadline
        self._told: dict[int, Place] = {}

    def tell(self, rank: int, place: Place) -> None:
        """Tell the others where this rank listens."""
        text = f"{place.address} {place.port} {place.word.hex()} {int(place.encrypts)}"
        self._store.set(_key(rank), text, self._deadline)

    def of(self, rank: int) -> Place:
        """Return where ``rank`` listens. Raises ``TimeoutError`` where it does not tell."""
        self._store.wait([_key(rank)], self._deadline)
        place = self.told(rank)
        assert place is not None
        return place

    def told(self, rank: int) -> Place | None:
        """Return where ``rank`` listens, None while it has not told."""
        if rank not in self._told and self._store.has([_key(rank)], self._deadline):
            self._told[rank] = _parsed(self._store.get(_key(rank), self._deadline), rank)
        return self._told.get(rank)

    def absent(self, world: int) -> list[int]:
        """Return the ranks that have told nothing; none where the store itself does not answer."""
        try:
            return [rank for rank in range(world) if self._store.answers and self.told(rank) is None]
        except LinkError:
            return []


def _key(rank: int) -> str:
    return f"rank {rank}"


def _parsed(text: str, rank: int) -> Place:
    try:
        address, port, word, encrypts = text.split()
        ipaddress.ip_address(address)
        place = Place(address, int(port), bytes.fromhex(word), {"0": False, "1": True}[encrypts])
        if len(place.word) != WORD_NBYTES or not 1 <= place.port <= _MOST_PORT:
            raise ValueError
    except (ValueError, KeyError) as error:
        raise LinkError(
            f"torch's store holds {shown(text)} under {_key(rank)!r}, which no rank of gradwire has written; "
            "find out who else writes to that store"
        ) from error
    return place
