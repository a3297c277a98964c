"""TLS for the links' sockets: the ranks' certificates and the handshake.

Three variables enable TLS, and each is the path of a PEM file. ``GRADWIRE_TLS_KEY`` and ``GRADWIRE_TLS_CERT``
contain this rank's key and certificate, and ``GRADWIRE_TLS_CA`` contains the certificate of the authority
that has signed the certificates of all ranks. Each end verifies the other end's certificate (TLS 1.3 or
later). The owner of any certificate of that authority can act as any rank. Therefore, use an authority that
signs only for these ranks, or map ranks to names with ``GRADWIRE_TLS_NAMES``.

If any of the variables is set, there is no fallback to plain text: invalid settings are errors.
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

# ``GRADWIRE_TLS_NAMES`` maps ranks to the names in their certificates: ``0-7=host1, 8-15=host2, *=spare``.
#
# A name is compared with the certificate's alternative names (of hosts and addresses), or with its common
# name if there are no alternative names. Case doesn't matter, and a ``*`` in a certificate isn't a wildcard.
# A rank with several entries may present any of their names. Ranks are global ranks of ``torch.distributed``.

NAMES = "GRADWIRE_TLS_NAMES"
_ENTRY = re.compile(r"(?:(\d+)(?:-(\d+))?|\*)=([^\s,=]+)")


class Names:
    """The certificate names of ranks, from ``GRADWIRE_TLS_NAMES``. Raises ``LinkError`` for invalid text."""

    def __init__(self, text: str) -> None:
        self._entries = [_entry(part) for part in re.split(r"[\s,]+", text.strip(" ,\n\t"))]

    def of(self, rank: int) -> frozenset[str]:
        """Return the names that ``rank`` may present. Raises ``LinkError`` if ``rank`` has no name."""
        found = frozenset(name for low, high, name in self._entries if low <= rank <= high)
        if not found:
            raise LinkError(f"{NAMES} has no name for rank {rank}; add {rank}=NAME, or *=NAME for all ranks")
        return found


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the names in a certificate, a result of Python's ``getpeercert``."""
    fields = certificate or {}
    others = [name for kind, name in fields.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    commons = [name for part in fields.get("subject", ()) for kind, name in part if kind == "commonName"]
    return frozenset(name.lower() for name in others or commons)


def check_name(rank: int, expected: frozenset[str], certificate: Mapping[str, Any] | None) -> None:
    """Raise ``LinkError`` unless the certificate of ``rank`` contains one of the expected names."""
    found = names_in(certificate)
    if not found & expected:
        raise LinkError(
            f"rank {rank}: expected a certificate for {' or '.join(sorted(expected))}, got one for "
            f"{' and '.join(sorted(found)) or 'no host'}; give this rank a matching certificate, or change "
            f"{NAMES}"
        )


def _entry(text: str) -> tuple[int, float, str]:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise LinkError(
            f"{NAMES}: expected entries such as 0=host1, 8-15=host2 or *=host3, got {shown(text)}; write "
            "each entry as RANKS=NAME"
        )
    low, high, name = match.groups()
    if low is None:
        return 0, float("inf"), name.lower()
    return int(low), int(high or low), name.lower()


# A TLS socket with the interface of a plain, non-blocking socket, for the calls that move frames.

_RECORD_NBYTES = 1 << 14
"""The largest size of a TLS record in bytes."""
_GONE = (ssl.SSL_ERROR_EOF, ssl.SSL_ERROR_SYSCALL, ssl.SSL_ERROR_ZERO_RETURN)
"""The error numbers that mean the end of a connection.

With OpenSSL 3.5, an error with one of these numbers may be a plain ``SSLError``.
"""


class EncryptedSocket(ssl.SSLSocket):
    """A TLS socket that never sends plain text.

    No received byte may stay buffered inside the socket, so a link receives until ``BlockingIOError`` before
    it polls.
    """

    def sendmsg(self, buffers: Sequence[memoryview], *_: object) -> int:  # type: ignore[override]
        """Send the first of ``buffers``; if it is short, its TLS record also gets bytes of the next buffer.

        After ``BlockingIOError``, call ``sendmsg`` again with the same bytes, because a part of them may have
        been sent.
        """
        first: memoryview | bytes = buffers[0]
        if len(first) < _RECORD_NBYTES and len(buffers) > 1:
            first = b"".join((first, buffers[1][: _RECORD_NBYTES - len(first)]))
        try:
            return self.write(first)
        except ssl.SSLError as error:
            raise _as_of_a_plain_socket(error) from None

    def recv_into(self, buffer: memoryview, *_: object) -> int:  # type: ignore[override]
        """Read arrived bytes, up to the end of a record, and return 0 at the end of the connection."""
        try:
            return self.read(len(buffer), buffer)  # type: ignore[return-value]  # an int, with a buffer
        except ssl.SSLError as error:
            raise _as_of_a_plain_socket(error) from None

    def setsockopt(self, level: int, option: int, value: Any, *rest: Any) -> None:
        """Set an option, but ignore ``SO_RCVLOWAT``, for which the kernel would count encrypted bytes."""
        if (level, option) != (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            super().setsockopt(level, option, value, *rest)

    def shutdown(self, how: int) -> None:
        """Shut down the connection; the base class would also drop the encryption and send plain text."""
        socket.socket.shutdown(self, how)


def _as_of_a_plain_socket(error: ssl.SSLError) -> OSError:
    if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
        return BlockingIOError(errno.EAGAIN, "not now")
    if error.errno in _GONE:
        return ConnectionResetError(errno.ECONNRESET, "the peer disconnected")
    return error


KEY, CERTIFICATE, AUTHORITY = VARIABLES = ("GRADWIRE_TLS_KEY", "GRADWIRE_TLS_CERT", "GRADWIRE_TLS_CA")


Done = TypeVar("Done")


@dataclass(frozen=True)
class Encryption:
    """A rank's TLS contexts and certificate names, and the names expected in its peers' certificates.

    ``own`` has the names in this rank's certificate, which expires at ``expires_s`` (Unix time). ``expected``
    has the names that each peer's certificate may have; None accepts any certificate of the authority.
    ``order`` lists the global ranks in the order of the link's ranks.
    """

    client: ssl.SSLContext
    server: ssl.SSLContext
    names: Names | None = None
    own: frozenset[str] = frozenset()
    expires_s: float = math.inf
    expected: Mapping[int, frozenset[str]] | None = None
    order: Sequence[int] = ()

    def of_link(self, rank: int, order: Sequence[int]) -> Encryption:
        """Return the encryption of a link's rank, given all its global ranks. Raises ``LinkError``."""
        if self.names is None:
            return replace(self, order=order)
        expected = {place: self.names.of(each) for place, each in enumerate(order)}
        if not self.own & expected[rank]:
            raise LinkError(
                f"rank {order[rank]}: expected a certificate for {' or '.join(sorted(expected[rank]))} "
                f"from {NAMES}, got {CERTIFICATE} for {' and '.join(sorted(self.own)) or 'no host'}; give "
                "this rank a matching certificate"
            )
        return replace(self, expected=expected, order=order)

    def check(self, peer: int, connection: ssl.SSLSocket) -> None:
        """Raise ``LinkError`` if ``peer`` has presented another rank's certificate."""
        if self.expected is not None:
            check_name(self.order[peer], self.expected[peer], connection.getpeercert())

    def name_of(self, peer: int) -> str:
        """Return the name of a link's rank in errors."""
        return f"rank {self.order[peer] if self.order else peer}"


def encryption(environment: Mapping[str, str]) -> Encryption | None:
    """Return the encryption that the variables configure, or None if none of them is set.

    Raises ``LinkError`` if only some of the variables are set, or if a file is missing, unreadable, expired
    or signed by a different authority.
    """
    missing = [variable for variable in VARIABLES if variable not in environment]
    present = [variable for variable in (*VARIABLES, NAMES) if variable in environment]
    if not present:
        return None
    if missing:
        raise LinkError(
            f"{' and '.join(present)} {'is' if len(present) == 1 else 'are'} set, but "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not; set all three, or none"
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
    """Return a TLS socket for this rank's connection to ``peer``. ``connection`` itself becomes unusable.

    Raises ``LinkError``, after closing the connection.
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
    """Return a TLS socket before its handshake; ``connection`` becomes unusable. Raises ``OSError``."""
    connection.setblocking(False)
    try:
        connection.getpeername()  # ssl would leak the socket of a disconnected peer
        return context.wrap_socket(
            connection, server_side=context.protocol is ssl.PROTOCOL_TLS_SERVER, do_handshake_on_connect=False
        )
    except BaseException:
        connection.close()
        raise


def handshake(
    end: ssl.SSLSocket, ours: Encryption, peer: int, sends: bytes, receives: bytes
) -> Generator[int, None, None]:
    """Run the TLS handshake with ``peer``. Yield each event (``select.POLLIN`` or ``POLLOUT``) to poll for.

    Both ends then exchange hellos again, encrypted. The second hello confirms to the connecting rank that its
    certificate was accepted, because in TLS 1.3 the connecting rank's handshake ends before the peer checks
    the certificate. Raises ``LinkError``.
    """
    try:
        yield from _until(end.do_handshake)
        ours.check(peer, end)
        if end.server_side:
            yield from _until(lambda: end.write(sends))
        received = yield from _read(end, len(receives))
        if not end.server_side:  # a refused client has already received the reason
            yield from _until(lambda: end.write(sends))
    except OSError as error:
        raise LinkError(
            f"the TLS handshake with {ours.name_of(peer)} failed ({reason(error)}); "
            f"use certificates signed by the authority in {AUTHORITY} on both ranks"
        ) from error
    if received != receives:
        raise LinkError(
            f"expected the same hello from {ours.name_of(peer)} before and after the TLS handshake, got "
            "a different one; check for programs that intercept the connection"
        )


def _read(end: ssl.SSLSocket, nbytes: int) -> Generator[int, None, bytes]:
    received = b""
    while len(received) < nbytes:
        more = yield from _until(partial(end.read, nbytes - len(received)))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "the peer disconnected")
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
    """Return a short reason for a failed handshake or an unusable file."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or type(error).__name__


def _context(protocol: int, environment: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = EncryptedSocket
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        # Clients don't read session tickets, and a close with unread bytes discards the bytes sent before it.
        context.num_tickets = 0
    else:
        context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(environment[CERTIFICATE], environment[KEY], password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise LinkError(
            f"{CERTIFICATE} and {KEY}: expected a matching pair in PEM without a password, got "
            f"{reason(error)}; create a new pair"
        ) from error
    authority = environment[AUTHORITY]
    try:
        context.load_verify_locations(cafile=authority)
    except (ssl.SSLError, OSError) as error:
        raise LinkError(
            f"{AUTHORITY}: expected a certificate in PEM, got {authority} ({reason(error)}); set "
            f"{AUTHORITY} to the authority's certificate"
        ) from error
    return context


def _check_file(variable: str, name: str) -> None:
    if not Path(name).is_file():
        raise LinkError(f"{variable}: expected a file, got {name!r}; set {variable} to a file in PEM")
    if not os.access(name, os.R_OK):
        raise LinkError(f"{variable}: this user cannot read {name}; change the file's owner or mode")


def _own_certificate(found: Encryption, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return this rank's certificate, after a handshake with itself.

    Raises ``LinkError`` if it is refused.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        found.client.wrap_bio(to_client, to_server),
        found.server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for end in ends * 2:  # a hello, the answer, and then both certificates
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        raise LinkError(
            f"ranks that trust the authority {environment[AUTHORITY]} would refuse the certificate "
            f"{environment[CERTIFICATE]}: {reason(error)}; sign a new certificate with that authority"
        ) from error
    return ends[1].getpeercert() or {}
