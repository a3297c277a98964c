"""Takes the calls of higher ranks, whoever else calls: until a caller has shown who it is it holds no seat.

Without TLS that is the word that the store tells; with TLS it is the certificate, which comes behind that
word, and several callers may be at it for the same seat. What strangers hold is bounded: the oldest of them
is hung up on when there are many, or when this process has no descriptor left.
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
from gradwire.links.rendezvous.addresses import VARIABLE
from gradwire.links.rendezvous.endpoints import Places
from gradwire.links.rendezvous.same_encryption import check_manners
from gradwire.links.rendezvous.tls import Encryption, handshake, wrapped

_MOST_STRANGERS = 128
_BREATH_S = 0.05
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EVENTS = {select.POLLIN: selectors.EVENT_READ, select.POLLOUT: selectors.EVENT_WRITE}


class _Caller:
    """Somebody who has called: what it has said so far, then its handshake as the rank that it says it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.said = b""
        self.rank: int | None = None
        self.handshake: Generator[int, None, None] | None = None


class Acceptor:
    """One rank's end of the calls of all ranks in ``wanted``.

    Parameters
    ----------
    listening
        A listening, non-blocking socket.
    word
        What callers have to say.
    rank, wanted
        This rank, and those that are to call.
    places
        What ranks have told of themselves.
    encryption
        What to ask callers for.
    """

    def __init__(
        self,
        listening: socket.socket,
        word: bytes,
        rank: int,
        wanted: range,
        places: Places,
        encryption: Encryption | None,
    ) -> None:
        self._listening, self._word, self._rank, self._wanted = listening, word, rank, wanted
        self._places, self._encryption = places, encryption
        self._callers: dict[int, _Caller] = {}  # the oldest first
        self._refusals: dict[int, str] = {}
        self._exhausted = ""
        self._selector = selectors.PollSelector()  # which needs no descriptor

    def receive(self, met: dict[int, socket.socket], deadline: float) -> None:
        """Take calls until all who are wanted are in ``met``. Raises ``LinkError``."""
        self._selector.register(self._listening, selectors.EVENT_READ)
        try:
            while any(rank not in met for rank in self._wanted):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self._late(met)
                for key, _ in self._selector.select(left_s):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif key.fd in self._callers:  # not hung up on meanwhile
                        self._serve(self._callers[key.fd], met)
        finally:
            for caller in list(self._callers.values()):
                self._hang_up(caller)

    def _accept(self) -> None:
        try:
            connection = self._listening.accept()[0]
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._make_room(error)
            return  # else who called has gone
        connection.setblocking(False)
        self._callers[connection.fileno()] = _Caller(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._callers) > _MOST_STRANGERS + len(self._wanted):
            self._hang_up(self._oldest())

    def _make_room(self, error: OSError) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._exhausted = f"{error.strerror}: this process may have {most} (ulimit -n)"
        if self._callers:
            self._hang_up(self._oldest())
        else:
            time.sleep(_BREATH_S)

    def _oldest(self) -> _Caller:
        """Return who has called first, of those that do not know the word if there are any."""
        callers = self._callers.values()
        return next((each for each in callers if each.rank is None), next(iter(callers)))

    def _serve(self, caller: _Caller, met: dict[int, socket.socket]) -> None:
        """Hear what a caller has to say, and seat it once it is known for a rank."""
        if caller.handshake is None:
            if not self._heard(caller):
                return
            caller.rank = hello.caller(caller.said, self._word, self._wanted)
            if caller.rank is None or caller.rank in met:
                self._hang_up(caller)
                return
            check_manners(self._places.told(caller.rank), caller.rank, self._encryption)
            if self._encryption is not None and not self._began(caller, caller.rank, self._encryption):
                return
        assert caller.rank is not None
        if caller.handshake is not None and not self._went_on(caller, caller.handshake):
            return
        self._forget(caller)
        if caller.rank in met:  # another was faster
            caller.connection.close()
        else:
            met[caller.rank] = caller.connection

    def _heard(self, caller: _Caller) -> bool:
        """Read more of its hello; tell whether that is all it will say."""
        more = b""
        try:
            more = caller.connection.recv(hello.NBYTES - len(caller.said))
        except BlockingIOError:
            return False
        except OSError:
            pass
        caller.said += more
        return not more or len(caller.said) == hello.NBYTES

    def _began(self, caller: _Caller, rank: int, encryption: Encryption) -> bool:
        """Prepare the handshake; tell whether the caller is still there for it."""
        self._forget(caller)
        try:
            caller.connection = end = wrapped(caller.connection, encryption.answering)
        except OSError:  # it said the word and was off: that must not end the meeting
            return False
        says, hears = hello.hello(self._word, self._rank), hello.hello(self._word, rank)
        caller.handshake = handshake(end, encryption, rank, says, hears)
        self._callers[end.fileno()] = caller
        self._selector.register(end, selectors.EVENT_READ)
        return True

    def _went_on(self, caller: _Caller, steps: Generator[int, None, None]) -> bool:
        """Shake hands as far as that goes without waiting; tell whether the caller is who it says."""
        try:
            self._selector.modify(caller.connection, _EVENTS[next(steps)])
        except StopIteration:
            return True
        except LinkError as error:
            assert caller.rank is not None
            self._refusals[caller.rank] = str(error)
            self._hang_up(caller)
        return False

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection.fileno()]

    def _hang_up(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.connection.close()

    def _late(self, met: dict[int, socket.socket]) -> LinkTimeoutError:
        """Say who is missing, and why as far as it is known here."""
        missing = [rank for rank in self._wanted if rank not in met]
        if self._exhausted:
            return LinkTimeoutError(
                f"{_ranks(missing)} could not be let in; {self._exhausted}; allow more, or close some"
            )
        refused = [self._refusals[rank] for rank in missing if rank in self._refusals]
        if refused:
            return LinkTimeoutError(refused[0])
        shaking = sorted({each.rank for each in self._callers.values() if each.rank is not None})
        if shaking:
            return LinkTimeoutError(f"{_ranks(shaking)} did not finish the TLS handshake")
        return LinkTimeoutError(f"{_ranks(missing)} did not call; can this rank be reached? Check {VARIABLE}")


def _ranks(ranks: list[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)
