"""How the ranks of a link connect: each listens, publishes where in a store, and connects to the lower ranks.

A rank that connects sends a token that only the store can have told it, and its rank. A connection on which
anything else comes, or nothing, is dropped: port scans do no harm. Once all are connected no rank listens.

With TLS that much goes in plain text, once, and then the handshake follows. Either all ranks encrypt or none.

Connections may be marked with a type of service, from their first packet on. They carry nothing but float32.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Sequence

from torch.distributed.distributed_c10d import Store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.store import StoreError
from gradwire.links.rendezvous.acceptor import Acceptor
from gradwire.links.rendezvous.addresses import listening_address, remedy
from gradwire.links.rendezvous.attempt import did_not_come
from gradwire.links.rendezvous.endpoints import TOKEN_NBYTES, Endpoint, Endpoints, NotInTimeError
from gradwire.links.rendezvous.hello import hello
from gradwire.links.rendezvous.same_encryption import check_same_encryption
from gradwire.links.rendezvous.tls import Encryption, encrypted

_BACKLOG = 128


def connect_ranks(
    store: Store,
    rank: int,
    names: Sequence[str],
    timeout_s: float,
    encryption: Encryption | None = None,
    tos: int = 0,
) -> dict[int, socket.socket]:
    """Return a connection to every other rank.

    Parameters
    ----------
    store
        Shared by exactly these ranks; nothing else in it is called ``rank N``.
    rank
        Which of them this is.
    names
        What errors call the ranks.
    timeout_s
        How long all of it may take.
    encryption
        What to show and to ask for in TLS, which goes over all connections then.
    tos
        The type of service that marks the connections, for float32 alone; 0 for ordinary ones.

    Raises
    ------
    LinkTimeoutError
        When a rank does not come, or the store does not answer; the message names which.
    LinkError
        When this rank cannot listen, cannot reach another, or does not agree with it about TLS.
    """
    if len(names) == 1:
        return {}
    deadline = time.monotonic() + timeout_s
    what = f"{names[rank]} connecting with the {len(names)} ranks of its group"
    endpoints = Endpoints(store, what, deadline, names)
    connections: dict[int, socket.socket] = {}
    try:
        _connect_all(endpoints, rank, connections, deadline, encryption, tos)
    except BaseException as error:
        for each in connections.values():
            each.close()
        if not isinstance(error, (OSError, LinkError)) or isinstance(error, StoreError):
            raise  # the store's says all that there is to say
        raise _explained(error, what, did_not_come(endpoints.absent()), timeout_s) from error
    for each in connections.values():
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        each.setblocking(False)
    return connections


def _connect_all(
    endpoints: Endpoints,
    rank: int,
    connections: dict[int, socket.socket],
    deadline: float,
    encryption: Encryption | None,
    tos: int,
) -> None:
    """Connect to the lower ranks in turn, then accept the higher: so no two wait for each other."""
    names = endpoints.names
    with _listen(listening_address(os.environ), len(names), tos) as listening:
        token = secrets.token_bytes(TOKEN_NBYTES)
        address, port = listening.getsockname()[:2]
        endpoints.publish(rank, Endpoint(address, port, token, encryption is not None))
        for lower in range(rank):
            endpoint = endpoints.wait_for(lower)
            try:
                connections[lower] = _connect(endpoint, names[lower], rank, deadline, tos)
            finally:
                # the reason, also where nobody listens any more
                check_same_encryption(endpoint, names[lower], encryption)
            if encryption is not None:
                sends, receives = hello(endpoint.token, rank), hello(endpoint.token, lower)
                connections[lower] = encrypted(
                    connections[lower], encryption, lower, sends, receives, _left(deadline)
                )
        higher = range(rank + 1, len(names))
        Acceptor(listening, token, rank, higher, endpoints, encryption, tos).run(connections, deadline)


def _socket_at(address: str, tos: int) -> socket.socket:
    """Return a socket for this address, marked before its first packet."""
    if ":" in address:
        made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
    else:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    return made


def _listen(address: str, world: int, tos: int) -> socket.socket:
    listening = _socket_at(address, tos)
    try:
        listening.bind((address, 0))
        listening.listen(max(world, _BACKLOG))
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _connect(endpoint: Endpoint, name: str, rank: int, deadline: float, tos: int) -> socket.socket:
    address, port = endpoint.address, endpoint.port
    try:
        connection = _called(address, port, _left(deadline), tos)
    except TimeoutError as error:
        raise NotInTimeError(f"{name} did not answer at {address}:{port}", remedy(address)) from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise LinkError(f"this process cannot connect to {name}: {error.strerror} (ulimit -n)") from error
        raise LinkError(
            f"cannot reach {name} at {address}:{port}: {error.strerror or error}; {remedy(address)}"
        ) from error
    try:
        connection.sendall(hello(endpoint.token, rank, tos))
    except BaseException:
        connection.close()
        raise
    return connection


def _called(address: str, port: int, timeout_s: float, tos: int) -> socket.socket:
    connection = _socket_at(address, tos)
    try:
        connection.settimeout(timeout_s)
        connection.connect((address, port))
    except BaseException:
        connection.close()
        raise
    return connection


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _explained(error: Exception, what: str, absent: str, timeout_s: float) -> LinkError:
    if isinstance(error, LinkTimeoutError) and not absent:
        advice = f"; {error.advice}" if isinstance(error, NotInTimeError) else ""
        return LinkTimeoutError(f"{what}: {error} within {timeout_s:g} s{advice}")
    if isinstance(error, TimeoutError):
        return LinkTimeoutError(f"{what}{absent}: nothing happened within {timeout_s:g} s")
    return LinkError(f"{what}{absent}: {str(error).partition(chr(10))[0]}")
