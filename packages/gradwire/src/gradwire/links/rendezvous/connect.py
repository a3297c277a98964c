"""Connections between all ranks of a link: each rank listens, and connects to all lower ranks in parallel.

A rank that connects sends the peer's token, read from the store, and its own rank. A connection that starts
with anything else, or sends nothing, is dropped, so that port scans do no harm. Ranks stop listening once all
ranks are connected.

With TLS, token and rank are sent in plain text, once, before the handshake.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import select
import selectors
import socket
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch.distributed.distributed_c10d import Store

from gradwire.errors import LinkError, LinkTimeoutError, no_progress
from gradwire.launch.addresses import remedy, with_port
from gradwire.launch.store import StoreError
from gradwire.links.rendezvous import endpoints as rendezvous_hello
from gradwire.links.rendezvous.attempt import absent_text, check_same_encryption
from gradwire.links.rendezvous.endpoints import TOKEN_NBYTES, Endpoint, Endpoints, NotInTimeError, hello
from gradwire.links.rendezvous.options import SocketOptions, congestion, connected, leaves_by
from gradwire.links.rendezvous.tls import Encryption, encrypted, handshake, wrapped

# Any connection is accepted, and dropped unless its rank is verified.
#
# Without TLS, the token from the store verifies the rank. With TLS, the certificate that follows the token
# verifies it, and several connections may claim the same rank until then. The number of unverified
# connections is limited: the oldest connection is dropped if there are too many, or if this process has no
# file descriptor left.
_MOST_PENDING = 128
_PAUSE_S = 0.05
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EVENTS = {select.POLLIN: selectors.EVENT_READ, select.POLLOUT: selectors.EVENT_WRITE}


@dataclass(eq=False)
class _Pending:
    """An unverified connection, its claimed rank, and its verification, which yields events to poll for.

    The verification returns whether the rank is verified.
    """

    connection: socket.socket
    fd: int
    rank: int | None = None
    verification: Generator[int, None, bool] = field(init=False)


class Acceptor:
    """The acceptor of connections from ``peers`` on one rank's non-blocking listening socket.

    Every connection must first send the token, as float32 if connections are marked with ``tos``.
    """

    def __init__(
        self,
        listening: socket.socket,
        token: bytes,
        rank: int,
        peers: range,
        endpoints: Endpoints,
        encryption: Encryption | None,
        tos: int = 0,
    ) -> None:
        self._listening, self._token, self._rank, self._peers = listening, token, rank, peers
        self._tos, self._hello_nbytes = tos, rendezvous_hello.nbytes(tos)
        self._endpoints, self._encryption = endpoints, encryption
        self._pending: dict[int, _Pending] = {}  # oldest first
        self._refusals: dict[int, str] = {}
        self._exhausted = ""
        self._selector = selectors.PollSelector()  # needs no file descriptor

    def run(self, connections: dict[int, socket.socket], deadline: float) -> None:
        """Accept connections until all peers are in ``connections``. Raises ``LinkError``."""
        self._selector.register(self._listening, selectors.EVENT_READ)
        try:
            while any(rank not in connections for rank in self._peers):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self._timeout(connections)
                for key, _ in self._selector.select(left_s):
                    if key.fileobj is self._listening:
                        self._accept(connections)
                    elif key.fd in self._pending:  # the connection may have been dropped meanwhile
                        self._serve(self._pending[key.fd], connections)
        finally:
            for pending in list(self._pending.values()):
                self._drop(pending)

    def _accept(self, connections: Mapping[int, socket.socket]) -> None:
        try:
            connection = self._listening.accept()[0]
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._make_room(error)
            return  # any other error: the other end has disconnected
        self._exhausted = ""
        connection.setblocking(False)
        pending = _Pending(connection, connection.fileno())
        pending.verification = self._verify(pending, connections)
        self._pending[pending.fd] = pending
        self._selector.register(pending.fd, selectors.EVENT_READ)
        if len(self._pending) > _MOST_PENDING + len(self._peers):
            self._drop(self._oldest())

    def _make_room(self, error: OSError) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._exhausted = f"{error.strerror}, the limit is {most} (ulimit -n)"
        if self._pending:
            self._drop(self._oldest())
        else:
            time.sleep(_PAUSE_S)

    def _oldest(self) -> _Pending:
        """Return the oldest connection without a valid token, or the oldest if all have a valid token."""
        pending = self._pending.values()
        return next((each for each in pending if each.rank is None), next(iter(pending)))

    def _serve(self, pending: _Pending, connections: dict[int, socket.socket]) -> None:
        """Process the arrived bytes of a connection, and keep it once its rank is verified."""
        try:
            self._selector.modify(pending.fd, _EVENTS[next(pending.verification)])
        except StopIteration as end:
            if not end.value:
                self._drop(pending)
                return
            assert pending.rank is not None
            self._forget(pending)
            connections[pending.rank] = pending.connection

    def _verify(
        self, pending: _Pending, connections: Mapping[int, socket.socket]
    ) -> Generator[int, None, bool]:
        """Read the hello, run the TLS handshake, if any, and return whether the rank is verified.

        Raises ``LinkError`` for a peer with different encryption, and for a store that is gone or silent.
        """
        received, ours = b"", self._encryption
        while len(received) < self._hello_nbytes:
            try:
                more = pending.connection.recv(self._hello_nbytes - len(received))
            except BlockingIOError:
                yield select.POLLIN
                continue
            except OSError:
                return False
            if not more:
                return False
            received += more
        rank = pending.rank = rendezvous_hello.rank_of(received, self._token, self._peers, self._tos)
        if rank is None or rank in connections:
            return False
        check_same_encryption(self._endpoints.find(rank), self._endpoints.names[rank], ours)
        if ours is None:
            return True
        try:
            pending.connection = wrapped(pending.connection, ours.server)  # keeps the descriptor
        except OSError:  # the peer disconnected after its token; keep waiting for other connections
            return False
        self._pending[pending.fd] = self._pending.pop(pending.fd)  # as the newest
        sends, receives = hello(self._token, self._rank), hello(self._token, rank)
        try:
            yield from handshake(pending.connection, ours, rank, sends, receives)
        except LinkError as error:
            self._refusals[rank] = str(error)
            return False
        return rank not in connections  # else another connection was verified first

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.fd)
        del self._pending[pending.fd]

    def _drop(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.connection.close()

    def _timeout(self, connections: dict[int, socket.socket]) -> LinkTimeoutError:
        """Return the error with the missing ranks, and the reason if known."""
        missing = [rank for rank in self._peers if rank not in connections]
        if self._exhausted:
            return NotInTimeError(
                f"{self._names(missing)} could not be accepted",
                f"{self._exhausted}; raise the limit, or close some files",
            )
        refused = [self._refusals[rank] for rank in missing if rank in self._refusals]
        if refused:
            return LinkTimeoutError(refused[0])
        shaking = sorted({each.rank for each in self._pending.values() if each.rank is not None})
        if shaking:
            return LinkTimeoutError(f"{self._names(shaking)} did not finish the TLS handshake")
        address = self._listening.getsockname()[0]
        return NotInTimeError(
            f"{self._names(missing)} did not connect to this rank at {address}", remedy(address)
        )

    def _names(self, ranks: list[int]) -> str:
        return " and ".join(self._endpoints.names[rank] for rank in ranks)


_BACKLOG = 128


class Connections(dict[int, socket.socket]):
    """The connections of one rank, by peer, and the address at which the rank has listened, if any."""

    address = ""


def connect_ranks(
    store: Store,
    rank: int,
    names: Sequence[str],
    timeout_s: float,
    encryption: Encryption | None = None,
    tos: int = 0,
    lane: int = 0,
    deadline: float | None = None,
) -> Connections:
    """Return a connection to every other rank, within ``timeout_s`` for all together.

    ``deadline`` is the end of ``timeout_s``, a time of ``time.monotonic``; None for a timeout from now on.
    Exactly these ranks share ``store``, which has no other keys named ``rank N``. ``names`` are the ranks'
    names in errors. Without ``encryption``, connections are in plain text. ``tos`` marks connections for
    float32 only, or is 0. The ``lane`` selects one of several interfaces in ``GLOO_SOCKET_IFNAME``. Raises a
    ``LinkTimeoutError`` that names a rank that doesn't join, or a store that doesn't answer, and a
    ``LinkError`` if this rank cannot listen or reach a rank, if only some ranks use TLS, or if
    ``GRADWIRE_TCP_CONGESTION`` is invalid.
    """
    options = SocketOptions(tos, congestion(os.environ))
    if len(names) == 1:
        return Connections()
    deadline = time.monotonic() + timeout_s if deadline is None else deadline
    doing = f"connecting lane {lane}" if lane else "connecting"
    what = f"{names[rank]} {doing} with the {len(names)} ranks of its group"
    endpoints = Endpoints(store, what, deadline, names)
    connections = Connections()
    try:
        _connect_all(endpoints, rank, lane, connections, deadline, encryption, options)
    except BaseException as error:
        for each in connections.values():
            each.close()
        if not isinstance(error, (OSError, LinkError)) or isinstance(error, StoreError):
            raise  # the store's error is complete
        raise _explained(error, what, absent_text(endpoints.absent()), timeout_s) from error
    for each in connections.values():
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        each.setblocking(False)
    return connections


def _connect_all(
    endpoints: Endpoints,
    rank: int,
    lane: int,
    connections: Connections,
    deadline: float,
    encryption: Encryption | None,
    options: SocketOptions,
) -> None:
    """Connect to the lower ranks, then accept the higher ranks; this order can't deadlock."""
    names, own = endpoints.names, endpoints.listening_address(rank, lane)
    options = replace(options, leaves_by=leaves_by(os.environ, own))
    with options.listening_at(own, max(len(names), _BACKLOG)) as listening:
        token = secrets.token_bytes(TOKEN_NBYTES)
        connections.address, port = listening.getsockname()[:2]
        endpoints.publish(rank, Endpoint(connections.address, port, token, encryption is not None))
        lowers = endpoints.wait_for(range(rank))
        for lower, endpoint in enumerate(lowers):
            with _described(endpoint, names[lower], encryption):
                connections[lower] = options.connecting_to(endpoint.address, endpoint.port)
        for lower, endpoint in enumerate(lowers):
            with _described(endpoint, names[lower], encryption):
                connected(connections[lower], _left(deadline)).sendall(
                    hello(endpoint.token, rank, options.tos)
                )
            check_same_encryption(endpoint, names[lower], encryption)
        if encryption is not None:
            for lower, endpoint in enumerate(lowers):
                sends, receives = hello(endpoint.token, rank), hello(endpoint.token, lower)
                connections[lower] = encrypted(
                    connections[lower], encryption, lower, sends, receives, _left(deadline)
                )
        higher = range(rank + 1, len(names))
        accepting = Acceptor(listening, token, rank, higher, endpoints, encryption, options.tos)
        accepting.run(connections, deadline)


@contextmanager
def _described(endpoint: Endpoint, name: str, encryption: Encryption | None) -> Iterator[None]:
    """Convert errors of a connection to ``name`` to ``LinkError``, which says if encryption differs."""
    address, port = endpoint.address, endpoint.port
    try:
        yield
    except OSError as error:
        check_same_encryption(endpoint, name, encryption)
        if isinstance(error, TimeoutError):
            raise NotInTimeError(
                f"{name} did not answer at {with_port(address, port)}", remedy(address)
            ) from error
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise LinkError(
                f"this process cannot connect to {name}: {error.strerror}; raise the limit (ulimit -n)"
            ) from error
        raise LinkError(
            f"this rank cannot reach {name} at {with_port(address, port)}: {error.strerror or error}; "
            f"{remedy(address)}"
        ) from error


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
        return LinkTimeoutError(f"{what}{absent}: {no_progress(timeout_s)}")
    return LinkError(f"{what}{absent}: {str(error).partition(chr(10))[0]}")
