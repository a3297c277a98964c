"""How the ranks of a link find each other: each listens, tells in a store where, and calls the lower ranks.

Who calls says a word that only the store can have told it, and its rank. Whoever says anything else, or
nothing, is nobody: port scans do not disturb. When all have met nobody listens any more.

With TLS that much goes in plain text, once, and then the handshake follows. Either all ranks encrypt or none.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time

from torch.distributed.distributed_c10d import Store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.rendezvous.acceptor import Acceptor
from gradwire.links.rendezvous.addresses import VARIABLE, listening_address
from gradwire.links.rendezvous.attempt import did_not_come
from gradwire.links.rendezvous.endpoints import WORD_NBYTES, Place, Places
from gradwire.links.rendezvous.hello import hello
from gradwire.links.rendezvous.same_encryption import check_manners
from gradwire.links.rendezvous.tls import Encryption, encrypted

_BACKLOG = 128


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
        When somebody does not come, or the store does not answer; the message names who.
    LinkError
        When this rank cannot listen, cannot reach another, or does not agree with it about TLS.
    """
    if world == 1:
        return {}
    deadline = time.monotonic() + timeout_s
    what = f"rank {rank} connecting with the {world} ranks of its group"
    places = Places(store, what, deadline)
    met: dict[int, socket.socket] = {}
    try:
        _meet(places, rank, world, met, deadline, encryption)
    except BaseException as error:
        for each in met.values():
            each.close()
        if not isinstance(error, (OSError, LinkError)) or str(error).startswith(what):
            raise  # of the store, with all that there is to say
        raise _explained(error, what, did_not_come(places.absent(world)), timeout_s) from error
    for each in met.values():
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        each.setblocking(False)
    return met


def _meet(
    places: Places,
    rank: int,
    world: int,
    met: dict[int, socket.socket],
    deadline: float,
    encryption: Encryption | None,
) -> None:
    """Call the lower ranks, one after the other, then hear the higher: so no two wait for each other."""
    with _listen(listening_address(os.environ), world) as listening:
        word = secrets.token_bytes(WORD_NBYTES)
        address, port = listening.getsockname()[:2]
        places.tell(rank, Place(address, port, word, encryption is not None))
        for lower in range(rank):
            place = places.of(lower)
            try:
                met[lower] = _call(place, lower, rank, deadline)
            finally:
                check_manners(place, lower, encryption)  # the reason, also where nobody listens any more
            if encryption is not None:
                says, hears = hello(place.word, rank), hello(place.word, lower)
                met[lower] = encrypted(met[lower], encryption, lower, says, hears, _left(deadline))
        Acceptor(listening, word, rank, range(rank + 1, world), places, encryption).receive(met, deadline)


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


def _call(place: Place, lower: int, rank: int, deadline: float) -> socket.socket:
    address, port = place.address, place.port
    try:
        called = socket.create_connection((address, port), timeout=_left(deadline))
    except TimeoutError as error:
        raise LinkTimeoutError(
            f"rank {lower} did not answer at {address}:{port}; check {VARIABLE} and the firewall there"
        ) from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise LinkError(f"this process cannot call rank {lower}: {error.strerror} (ulimit -n)") from error
        raise LinkError(
            f"rank {lower} is not to be reached at {address}:{port}: {error.strerror or error}"
        ) from error
    try:
        called.sendall(hello(place.word, rank))
    except BaseException:
        called.close()
        raise
    return called


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _explained(error: Exception, what: str, absent: str, timeout_s: float) -> LinkError:
    text = str(error)
    if isinstance(error, LinkTimeoutError) and not absent:
        missing, semicolon, advice = text.partition(";")
        return LinkTimeoutError(f"{what}: {missing} within {timeout_s:g} s{semicolon}{advice}")
    if isinstance(error, TimeoutError):
        return LinkTimeoutError(f"{what}{absent}: nothing happened within {timeout_s:g} s")
    return LinkError(f"{what}{absent}: {text.partition(chr(10))[0]}")
