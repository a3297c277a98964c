"""Accepts the connections of higher ranks, whoever else connects: none counts until its rank is verified.

Without TLS that is the token that the store tells; with TLS it is the certificate, which comes behind that
token, and several connections may be at it for the same rank. What is not verified is bounded: the oldest of
these connections is dropped when there are many, or when this process has no descriptor left.
"""

from __future__ import annotations

import errno
import resource
import select
import selectors
import socket
import time
from collections.abc import Generator

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.rendezvous import hello
from gradwire.links.rendezvous.addresses import remedy
from gradwire.links.rendezvous.endpoints import Endpoints, NotInTimeError
from gradwire.links.rendezvous.same_encryption import check_same_encryption
from gradwire.links.rendezvous.tls import Encryption, handshake, wrapped

_MOST_PENDING = 128
_PAUSE_S = 0.05
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EVENTS = {select.POLLIN: selectors.EVENT_READ, select.POLLOUT: selectors.EVENT_WRITE}


class _Pending:
    """A connection that is not verified: what it has sent, then its handshake as the rank that it claims."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.rank: int | None = None
        self.handshake: Generator[int, None, None] | None = None


class Acceptor:
    """One rank's listening socket, until all ranks in ``wanted`` have connected.

    ``listening`` does not block. Every connection has to send the token first, as float32 where ``tos`` says
    that the connections are marked.
    """

    def __init__(
        self,
        listening: socket.socket,
        token: bytes,
        rank: int,
        wanted: range,
        endpoints: Endpoints,
        encryption: Encryption | None,
        tos: int = 0,
    ) -> None:
        self._listening, self._token, self._rank, self._wanted = listening, token, rank, wanted
        self._tos, self._hello_nbytes = tos, hello.nbytes(tos)
        self._endpoints, self._encryption = endpoints, encryption
        self._pending: dict[int, _Pending] = {}  # the oldest first
        self._refusals: dict[int, str] = {}
        self._exhausted = ""
        self._selector = selectors.PollSelector()  # which needs no descriptor

    def run(self, connections: dict[int, socket.socket], deadline: float) -> None:
        """Accept until all that are wanted are in ``connections``. Raises ``LinkError``."""
        self._selector.register(self._listening, selectors.EVENT_READ)
        try:
            while any(rank not in connections for rank in self._wanted):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self._timeout(connections)
                for key, _ in self._selector.select(left_s):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif key.fd in self._pending:  # not dropped meanwhile
                        self._serve(self._pending[key.fd], connections)
        finally:
            for pending in list(self._pending.values()):
                self._drop(pending)

    def _accept(self) -> None:
        try:
            connection = self._listening.accept()[0]
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._make_room(error)
            return  # else the other end has gone
        connection.setblocking(False)
        self._pending[connection.fileno()] = _Pending(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._pending) > _MOST_PENDING + len(self._wanted):
            self._drop(self._oldest())

    def _make_room(self, error: OSError) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._exhausted = f"{error.strerror}: this process may have {most} (ulimit -n)"
        if self._pending:
            self._drop(self._oldest())
        else:
            time.sleep(_PAUSE_S)

    def _oldest(self) -> _Pending:
        """Return the one that was accepted first, of those without the token if there are any."""
        pending = self._pending.values()
        return next((each for each in pending if each.rank is None), next(iter(pending)))

    def _serve(self, pending: _Pending, connections: dict[int, socket.socket]) -> None:
        """Read what has come on a connection, and keep it once its rank is verified."""
        if pending.handshake is None:
            if not self._received_hello(pending):
                return
            pending.rank = hello.rank_of(pending.received, self._token, self._wanted, self._tos)
            if pending.rank is None or pending.rank in connections:
                self._drop(pending)
                return
            name = self._endpoints.names[pending.rank]
            check_same_encryption(self._endpoints.find(pending.rank), name, self._encryption)
            if self._encryption is not None and not self._began(pending, pending.rank, self._encryption):
                return
        assert pending.rank is not None
        if pending.handshake is not None and not self._went_on(pending, pending.handshake):
            return
        self._forget(pending)
        if pending.rank in connections:  # another was faster
            pending.connection.close()
        else:
            connections[pending.rank] = pending.connection

    def _received_hello(self, pending: _Pending) -> bool:
        """Read more of its hello; return whether that is all that will come."""
        more = b""
        try:
            more = pending.connection.recv(self._hello_nbytes - len(pending.received))
        except BlockingIOError:
            return False
        except OSError:
            pass
        pending.received += more
        return not more or len(pending.received) == self._hello_nbytes

    def _began(self, pending: _Pending, rank: int, encryption: Encryption) -> bool:
        """Prepare the handshake; return whether the other end is still there for it."""
        self._forget(pending)
        try:
            pending.connection = end = wrapped(pending.connection, encryption.server)
        except OSError:  # it sent the token and was off: that must not end the others' wait
            return False
        sends, receives = hello.hello(self._token, self._rank), hello.hello(self._token, rank)
        pending.handshake = handshake(end, encryption, rank, sends, receives)
        self._pending[end.fileno()] = pending
        self._selector.register(end, selectors.EVENT_READ)
        return True

    def _went_on(self, pending: _Pending, steps: Generator[int, None, None]) -> bool:
        """Shake hands as far as that goes without waiting; return whether the rank is verified."""
        try:
            self._selector.modify(pending.connection, _EVENTS[next(steps)])
        except StopIteration:
            return True
        except LinkError as error:
            assert pending.rank is not None
            self._refusals[pending.rank] = str(error)
            self._drop(pending)
        return False

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.connection)
        del self._pending[pending.connection.fileno()]

    def _drop(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.connection.close()

    def _timeout(self, connections: dict[int, socket.socket]) -> LinkTimeoutError:
        """Return the error that names who is missing, and why as far as it is known here."""
        missing = [rank for rank in self._wanted if rank not in connections]
        if self._exhausted:
            return NotInTimeError(
                f"{self._names(missing)} could not be let in", f"{self._exhausted}; allow more, or close some"
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
