"""TLS of the links' own sockets, which three variables switch on: who may join, and how two ends agree.

``GRADWIRE_TLS_KEY`` and ``GRADWIRE_TLS_CERT`` are this rank's, ``GRADWIRE_TLS_CA`` is the authority that has
signed the certificates of all ranks; each names a file in PEM. Both ends show a certificate, and both check
the other's (TLS 1.3 at least). Whoever has one of that authority may be any rank, so let it sign for nobody
else, or let ``GRADWIRE_TLS_NAMES`` say which rank has which name (``tls_names``).

Once one of the variables is set nothing goes in plain text instead: what does not fit is an error.
"""

from __future__ import annotations

import errno
import math
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gradwire.errors import LinkError, LinkTimeoutError, shown

# Whose certificate a rank may show, if ``GRADWIRE_TLS_NAMES`` says it: ``0-7=host1, 8-15=host2, *=spare``.
#
# A name is compared with the certificate's alternative names (of hosts and addresses), or with its common
# name if it has none of these. Upper and lower case are the same, and a ``*`` in a certificate means nothing.
# A rank that has a name in several entries may show any of them. Ranks are those of ``torch.distributed``'s
# world.

NAMES = "GRADWIRE_TLS_NAMES"
_ENTRY = re.compile(r"(?:(\d+)(?:-(\d+))?|\*)=([^\s,=]+)")


class Names:
    """The names that ranks may have. Raises ``LinkError`` unless the text is a list of them."""

    def __init__(self, text: str) -> None:
        self._entries = [_entry(part) for part in re.split(r"[\s,]+", text.strip(" ,\n\t"))]

    def of(self, rank: int) -> frozenset[str]:
        """Return the names that ``rank`` may have. Raises ``LinkError`` where it may have none."""
        found = frozenset(name for low, high, name in self._entries if low <= rank <= high)
        if not found:
            raise LinkError(f"{NAMES} has no name for rank {rank}; add {rank}=NAME, or *=NAME for all ranks")
        return found


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the names that a certificate has, as Python's ``getpeercert`` tells it."""
    told = certificate or {}
    others = [name for kind, name in told.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    commons = [name for part in told.get("subject", ()) for kind, name in part if kind == "commonName"]
    return frozenset(name.lower() for name in others or commons)


def check_name(rank: int, wanted: frozenset[str], certificate: Mapping[str, Any] | None) -> None:
    """Raise ``LinkError`` unless the certificate that ``rank`` shows has a name that it may have."""
    found = names_in(certificate)
    if not found & wanted:
        has = " and ".join(sorted(found)) or "no name"
        raise LinkError(
            f"the certificate of rank {rank} is that of {has}, where {NAMES} wants "
            f"{' or '.join(sorted(wanted))}"
        )


def _entry(text: str) -> tuple[int, float, str]:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise LinkError(
            f"{NAMES} wants entries such as 0=host1, 8-15=host2 or *=host3, but has {shown(text)}"
        )
    low, high, name = match.groups()
    if low is None:
        return 0, float("inf"), name.lower()
    return int(low), int(high or low), name.lower()


# A TLS socket that behaves as a plain, non-blocking one does where a link moves frames.

_RECORD_NBYTES = 1 << 14
"""What one record of TLS carries at most."""
_GONE = (ssl.SSL_ERROR_EOF, ssl.SSL_ERROR_SYSCALL, ssl.SSL_ERROR_ZERO_RETURN)
"""The numbers of errors of a connection that ended. With OpenSSL 3.5, one of them is a plain ``SSLError``."""


class EncryptedSocket(ssl.SSLSocket):
    """A socket of TLS, without a way back: what this is asked to send never goes in plain text.

    Nothing that has come stays inside unread: a link receives until ``BlockingIOError``, and polls after it.
    """

    def sendmsg(self, buffers: Sequence[memoryview], *_: object) -> int:  # type: ignore[override]
        """Send the first of ``buffers``, and with a short one what has room in its record.

        After ``BlockingIOError`` it has to be called with the same bytes again: a part of them is on its way.
        """
        first: memoryview | bytes = buffers[0]
        if len(first) < _RECORD_NBYTES and len(buffers) > 1:
            first = b"".join((first, buffers[1][: _RECORD_NBYTES - len(first)]))
        try:
            return self.write(first)
        except ssl.SSLError as error:
            raise _as_of_a_plain_socket(error) from None

    def recv_into(self, buffer: memoryview, *_: object) -> int:  # type: ignore[override]
        """Read what there is, as far as a record goes; return 0 at the end."""
        try:
            return self.read(len(buffer), buffer)  # type: ignore[return-value]  # an int, with a buffer
        except ssl.SSLError as error:
            raise _as_of_a_plain_socket(error) from None

    def setsockopt(self, level: int, option: int, value: Any, *rest: Any) -> None:
        """Set it, except that a poll may sleep: bytes of the network are not those of frames."""
        if (level, option) != (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            super().setsockopt(level, option, value, *rest)

    def shutdown(self, how: int) -> None:
        """End the connection. The base class would also forget that it is encrypted, and send on in plain."""
        socket.socket.shutdown(self, how)


def _as_of_a_plain_socket(error: ssl.SSLError) -> OSError:
    if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
        return BlockingIOError(errno.EAGAIN, "not now")
    if error.errno in _GONE:
        return ConnectionResetError(errno.ECONNRESET, "the peer is gone")
    return error


KEY, CERTIFICATE, AUTHORITY = VARIABLES = ("GRADWIRE_TLS_KEY", "GRADWIRE_TLS_CERT", "GRADWIRE_TLS_CA")


Done = TypeVar("Done")


@dataclass(frozen=True)
class Encryption:
    """What this rank shows, and asks others for, at either end of a connection.

    ``own`` are the names in its certificate, which expires at ``expires_s`` (Unix time). ``wanted`` says
    which names each peer's has to have one of; where it is None any certificate of the authority will do.
    ``order`` are the world's ranks in the order of the link's.
    """

    client: ssl.SSLContext
    server: ssl.SSLContext
    names: Names | None = None
    own: frozenset[str] = frozenset()
    expires_s: float = math.inf
    wanted: Mapping[int, frozenset[str]] | None = None
    order: Sequence[int] = ()

    def of_link(self, rank: int, order: Sequence[int]) -> Encryption:
        """Return this for the rank ``rank`` of a link, whose ranks are these of the world.

        Raises ``LinkError`` where the own certificate is not one that this rank may show.
        """
        if self.names is None:
            return replace(self, order=order)
        wanted = {place: self.names.of(each) for place, each in enumerate(order)}
        if not self.own & wanted[rank]:
            raise LinkError(
                f"this is rank {order[rank]}, for which {NAMES} wants a certificate of "
                f"{' or '.join(sorted(wanted[rank]))}, but {CERTIFICATE} names one of "
                f"{' and '.join(sorted(self.own)) or 'nobody'}; give this rank its own certificate"
            )
        return replace(self, wanted=wanted, order=order)

    def check(self, peer: int, connection: ssl.SSLSocket) -> None:
        """Raise ``LinkError`` where ``peer`` has shown a certificate that it must not have."""
        if self.wanted is not None:
            check_name(self.order[peer], self.wanted[peer], connection.getpeercert())

    def name_of(self, peer: int) -> str:
        """Return what errors call a rank of the link."""
        return f"rank {self.order[peer] if self.order else peer}"


def encryption(environment: Mapping[str, str]) -> Encryption | None:
    """Return what the variables ask for, None where none of them is set.

    Raises ``LinkError`` where only some are set, or a file is missing, unreadable, expired or of another
    authority: before anything is sent.
    """
    missing = [variable for variable in VARIABLES if variable not in environment]
    present = [variable for variable in (*VARIABLES, NAMES) if variable in environment]
    if not present:
        return None
    if missing:
        raise LinkError(
            f"{' and '.join(present)} {'is' if len(present) == 1 else 'are'} set, but "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not; "
            "set all three to encrypt, or none"
        )
    for variable in VARIABLES:
        _check_file(variable, environment[variable])
    found = Encryption(
        _context(ssl.PROTOCOL_TLS_CLIENT, environment),
        _context(ssl.PROTOCOL_TLS_SERVER, environment),
        Names(environment[NAMES]) if NAMES in environment else None,
    )
    own = _own_certificate(found, environment)
    return replace(found, own=names_in(own), expires_s=ssl.cert_time_to_seconds(own["notAfter"]))


def encrypted(
    connection: socket.socket, ours: Encryption, peer: int, sends: bytes, receives: bytes, left_s: float
) -> ssl.SSLSocket:
    """Return the connection that this rank has made to ``peer``, encrypted.

    ``connection`` itself is of no further use. Raises ``LinkError``, after closing the connection.
    """
    deadline = time.monotonic() + left_s
    end = wrapped(connection, ours.client)
    try:
        steps = handshake(end, ours, peer, sends, receives)
        for events in steps:
            poll = select.poll()
            poll.register(end, events)
            if not poll.poll(1e3 * max(0.0, deadline - time.monotonic())):
                raise LinkTimeoutError(f"{ours.name_of(peer)} did not finish the TLS handshake")
    except BaseException:
        end.close()
        raise
    return end


def wrapped(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return the connection as one of TLS, before the handshake; ``connection`` is of no further use.

    Raises ``OSError`` where the peer is gone.
    """
    connection.setblocking(False)
    try:
        connection.getpeername()  # ssl would lose the socket of a peer that has hung up
        return context.wrap_socket(
            connection,
            server_side=context.protocol is ssl.PROTOCOL_TLS_SERVER,
            do_handshake_on_connect=False,
        )
    except BaseException:
        connection.close()
        raise


def handshake(
    end: ssl.SSLSocket, ours: Encryption, peer: int, sends: bytes, receives: bytes
) -> Generator[int, None, None]:
    """Shake hands with ``peer``; yield what to poll for (``select.POLLIN`` or ``POLLOUT``) before going on.

    Both ends then send, where nobody can alter it, what they have sent in plain text. Only that tells the
    rank that has connected that its certificate was accepted: in TLS 1.3 its own handshake ends before.

    Raises ``LinkError``.
    """
    try:
        yield from _until(end.do_handshake)
        ours.check(peer, end)
        if end.server_side:
            yield from _until(lambda: end.write(sends))
        received = yield from _read(end, len(receives))
        if not end.server_side:  # whom the other end refuses reads its reason above
            yield from _until(lambda: end.write(sends))
    except OSError as error:
        raise LinkError(
            f"the TLS handshake with {ours.name_of(peer)} failed ({reason(error)}); "
            f"both ranks need a certificate of the authority that {AUTHORITY} names"
        ) from error
    if received != receives:
        raise LinkError(f"{ours.name_of(peer)} sent another hello after the TLS handshake than before")


def _read(end: ssl.SSLSocket, nbytes: int) -> Generator[int, None, bytes]:
    received = b""
    while len(received) < nbytes:
        more = yield from _until(partial(end.read, nbytes - len(received)))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        received += more
    return received


def _until(act: Callable[[], Done]) -> Generator[int, None, Done]:
    while True:
        try:
            return act()
        except ssl.SSLWantReadError:
            yield select.POLLIN
        except ssl.SSLWantWriteError:
            yield select.POLLOUT


def reason(error: OSError) -> str:
    """Return in a few words why a handshake failed, or a file does not fit."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or type(error).__name__


def _context(protocol: int, environment: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = EncryptedSocket
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        # Nobody would read them, and a close with unread bytes destroys what was sent before it.
        context.num_tickets = 0
    else:
        context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(environment[CERTIFICATE], environment[KEY], password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise LinkError(
            f"{CERTIFICATE} and {KEY} are no pair in PEM without a password: {reason(error)}"
        ) from error
    authority = environment[AUTHORITY]
    try:
        context.load_verify_locations(cafile=authority)
    except (ssl.SSLError, OSError) as error:
        raise LinkError(
            f"{AUTHORITY} names {authority}, which holds no certificate in PEM: {reason(error)}"
        ) from error
    return context


def _check_file(variable: str, name: str) -> None:
    if not Path(name).is_file():
        raise LinkError(f"{variable} names {name!r}, which is no file here; set it to a file in PEM")
    if not os.access(name, os.R_OK):
        raise LinkError(f"{variable} names {name}, which this user may not read; change its owner or mode")


def _own_certificate(found: Encryption, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what ssl reads in the own certificate, which meets itself for that.

    What others would refuse raises ``LinkError`` here, before they see it.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        found.client.wrap_bio(to_client, to_server),
        found.server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for end in ends * 2:  # a hello, the answer, and each certificate behind that
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        raise LinkError(
            f"the certificate {environment[CERTIFICATE]} would be refused by ranks with the authority "
            f"{environment[AUTHORITY]}: {reason(error)}; sign a new one with that authority"
        ) from error
    return ends[1].getpeercert() or {}
