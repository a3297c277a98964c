"""How the ranks of a link find each other: each listens, tells in a store where, and calls the lower ranks.

Who calls says a word that only the store can have told it, and its rank. Whoever says anything else, or
nothing, is nobody: port scans do not disturb. When all have met nobody listens any more.

With TLS that much goes in plain text, once, and then the handshake follows. Either all ranks encrypt or none.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import struct
import time
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, cast

from torch.distributed.distributed_c10d import Store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.addresses import VARIABLE, listening_address
from gradwire.links.tls import Encryption, encrypted

_HELLO = struct.Struct("<16sI")
"""The word of whom one calls, and one's own rank."""
_BACKLOG = 128
_MANNERS = ("in plain text", "with TLS")


def meet(
    store: Store, rank: int, world: int, timeout_s: float, encryption: Encryption | None = None
) -> dict[int, socket.socket]:
    """Return a connection to every other rank.

    Parameters
    ----------
    store
        Shared by exactly these ranks; nothing else in it is called ``rank N``.
    rank, world
        Who this is, of how many.
    timeout_s
        How long all of it may take.
    encryption
        What to show and to ask for in TLS, which goes over all connections then.

    Raises
    ------
    LinkTimeoutError
        When somebody does not come; the message names who.
    LinkError
        When this rank cannot listen, cannot reach another, or does not agree with it about TLS.
    """
    if world == 1:
        return {}
    deadline = time.monotonic() + timeout_s
    met: dict[int, socket.socket] = {}
    try:
        with _listen(listening_address(os.environ), world) as listening:
            word = secrets.token_bytes(16)
            address, port = listening.getsockname()[:2]
            store.set(_key(rank), f"{address} {port} {word.hex()} {int(encryption is not None)}")
            places: dict[int, _Place] = {}
            for lower in range(rank):
                places[lower] = _place(store, lower, deadline)
                met[lower] = _call(places[lower], lower, rank, deadline)
            _answer(listening, word, range(rank + 1, world), met, deadline)
        for peer in sorted(met):  # an order in which no two wait for each other
            place = places[peer] if peer < rank else _place(store, peer, deadline)
            _check_manners(place, peer, encryption)
            if encryption is not None:
                shared = place.word if peer < rank else word
                met[peer] = _encrypted(met[peer], peer, rank, shared, encryption, deadline)
    except BaseException as error:
        for each in met.values():
            each.close()
        if not isinstance(error, (RuntimeError, OSError, LinkError)):
            raise
        what, absent = f"rank {rank} connecting with the {world} ranks of its group", _absent(store, world)
        raise _explained(error, what, absent, timeout_s) from error
    for each in met.values():
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        each.setblocking(False)
    return met


def _key(rank: int) -> str:
    return f"rank {rank}"


def _listen(address: str, world: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.bind((address, 0))
        listening.listen(max(world, _BACKLOG))
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


class _Place(NamedTuple):
    """What a rank tells of itself in the store."""

    address: str
    port: int
    word: bytes
    encrypts: bool


def _place(store: Store, rank: int, deadline: float) -> _Place:
    store.wait([_key(rank)], timedelta(seconds=_left(deadline)))
    address, port, word, encrypts = store.get(_key(rank)).decode().split()
    return _Place(address, int(port), bytes.fromhex(word), encrypts == "1")


def _call(place: _Place, lower: int, rank: int, deadline: float) -> socket.socket:
    address, port = place.address, place.port
    try:
        called = socket.create_connection((address, port), timeout=_left(deadline))
    except TimeoutError as error:
        raise LinkTimeoutError(
            f"rank {lower} did not answer at {address}:{port}; check {VARIABLE} and the firewall there"
        ) from error
    except OSError as error:
        raise LinkError(
            f"rank {lower} is not to be reached at {address}:{port}: {error.strerror or error}"
        ) from error
    try:
        called.sendall(_HELLO.pack(place.word, rank))
    except BaseException:
        called.close()
        raise
    return called


def _answer(
    listening: socket.socket, word: bytes, wanted: range, met: dict[int, socket.socket], deadline: float
) -> None:
    """Take calls until all of ``wanted`` have called."""
    said: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        try:
            while any(rank not in met for rank in wanted):
                for key, _ in selector.select(_left(deadline)):
                    caller = cast("socket.socket", key.fileobj)
                    if caller is listening:
                        _accept(listening, selector, said)
                        continue
                    more = _hear(caller, _HELLO.size - len(said[caller]))
                    said[caller] += more
                    if more and len(said[caller]) < _HELLO.size:
                        continue
                    selector.unregister(caller)
                    rank = _identified(said.pop(caller), word, wanted)
                    if rank is None or rank in met:
                        caller.close()
                    else:
                        met[rank] = caller
        except TimeoutError as error:
            missing = " and ".join(f"rank {rank}" for rank in wanted if rank not in met)
            raise LinkTimeoutError(
                f"{missing} did not call; can this rank be reached? Check {VARIABLE}"
            ) from error
        finally:
            for stranger in said:
                stranger.close()


def _check_manners(place: _Place, peer: int, encryption: Encryption | None) -> None:
    """Raise ``LinkError`` where one of the two encrypts and the other does not."""
    if place.encrypts != (encryption is not None):
        raise LinkError(
            f"rank {peer} talks {_MANNERS[place.encrypts]}, but this rank {_MANNERS[not place.encrypts]}; "
            "set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA for all ranks or for none"
        )


def _encrypted(
    connection: socket.socket, peer: int, rank: int, word: bytes, encryption: Encryption, deadline: float
) -> socket.socket:
    """Return the connection with TLS; the lower rank answers, and ``word`` is its own."""
    context = encryption.calling if peer < rank else encryption.answering
    says, hears = _HELLO.pack(word, rank), _HELLO.pack(word, peer)
    return encrypted(connection, context, peer, says, hears, _left(deadline))


def _accept(
    listening: socket.socket, selector: selectors.BaseSelector, said: dict[socket.socket, bytes]
) -> None:
    with suppress(OSError):  # who called has gone
        caller = listening.accept()[0]
        caller.setblocking(False)
        said[caller] = b""
        selector.register(caller, selectors.EVENT_READ)


def _hear(caller: socket.socket, nbytes: int) -> bytes:
    with suppress(OSError):
        return caller.recv(nbytes)
    return b""


def _identified(hello: bytes, word: bytes, wanted: range) -> int | None:
    """Return which rank says this, None for a stranger."""
    if len(hello) < _HELLO.size:
        return None
    said, rank = _HELLO.unpack(hello)
    return rank if secrets.compare_digest(said, word) and rank in wanted else None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _absent(store: Store, world: int) -> str:
    """Name the ranks that have not come; nothing where all have, or where the store itself is gone."""
    try:
        gone = [rank for rank in range(world) if not store.check([_key(rank)])]
    except RuntimeError:
        return ""
    return f" ({' and '.join(f'rank {rank}' for rank in gone)} did not come)" if gone else ""


def _explained(error: Exception, what: str, absent: str, timeout_s: float) -> LinkError:
    text = str(error)
    if isinstance(error, LinkTimeoutError) and not absent:
        missing, semicolon, advice = text.partition(";")
        return LinkTimeoutError(f"{what}: {missing} within {timeout_s:g} s{semicolon}{advice}")
    if isinstance(error, TimeoutError) or "timeout" in text.lower() or "timed out" in text.lower():
        return LinkTimeoutError(f"{what}{absent}: nothing happened within {timeout_s:g} s")
    return LinkError(f"{what}{absent}: {text.partition(chr(10))[0]}")
