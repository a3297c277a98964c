"""TLS of the links' own sockets, which three variables switch on: who may join, and how two ends agree.

``GRADWIRE_TLS_KEY`` and ``GRADWIRE_TLS_CERT`` are this rank's, ``GRADWIRE_TLS_CA`` is the authority that has
signed the certificates of all ranks; each names a file in PEM. Both ends show a certificate, and both check
the other's (TLS 1.3 at least). The name in it is compared with nothing, since ranks find each other by
address: whoever has a certificate of that authority is one of us. So let it sign for nobody else.

Once one of the variables is set nothing goes in plain text instead: what does not fit is an error.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.encrypted_socket import EncryptedSocket

KEY, CERTIFICATE, AUTHORITY = VARIABLES = ("GRADWIRE_TLS_KEY", "GRADWIRE_TLS_CERT", "GRADWIRE_TLS_CA")


@dataclass(frozen=True)
class Encryption:
    """What this rank shows, and asks others for: as who calls, and as who answers."""

    calling: ssl.SSLContext
    answering: ssl.SSLContext


def encryption(environment: Mapping[str, str]) -> Encryption | None:
    """Return what the variables ask for, None where none of them is set.

    Raises ``LinkError`` where only some are set, or a file is missing, unreadable, expired or of another
    authority: before anything is sent.
    """
    missing = [variable for variable in VARIABLES if variable not in environment]
    if len(missing) == len(VARIABLES):
        return None
    if missing:
        present = [variable for variable in VARIABLES if variable in environment]
        raise LinkError(
            f"{' and '.join(present)} {'is' if len(present) == 1 else 'are'} set, but "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not; "
            "set all three to encrypt, or none"
        )
    for variable in VARIABLES:
        _check_file(variable, environment[variable])
    found = Encryption(
        _context(ssl.PROTOCOL_TLS_CLIENT, environment), _context(ssl.PROTOCOL_TLS_SERVER, environment)
    )
    _check_own_handshake(found, environment)
    return found


def encrypted(
    connection: socket.socket, context: ssl.SSLContext, peer: int, says: bytes, hears: bytes, left_s: float
) -> ssl.SSLSocket:
    """Return the connection to ``peer`` encrypted; ``connection`` itself is of no further use.

    Both ends then say, where nobody can alter it, what they have said in plain text. Only that tells who
    has called that its certificate was taken: in TLS 1.3 its own handshake ends before.

    Raises ``LinkError``, after closing the connection.
    """
    connection.settimeout(left_s)
    answers = context.protocol is ssl.PROTOCOL_TLS_SERVER
    try:
        end = context.wrap_socket(connection, server_side=answers, do_handshake_on_connect=False)
        try:
            end.do_handshake()
            if answers:
                end.write(says)
            heard = b""
            while len(heard) < len(hears):
                more = end.read(len(hears) - len(heard))
                if not more:
                    raise ConnectionResetError(errno.ECONNRESET, "it hung up")
                heard += more
            if not answers:  # whom the other end refuses reads its reason above
                end.write(says)
        except BaseException:
            end.close()
            raise
    except TimeoutError as error:
        connection.close()
        raise LinkTimeoutError(f"rank {peer} did not finish the TLS handshake") from error
    except OSError as error:
        connection.close()
        raise LinkError(
            f"the TLS handshake with rank {peer} failed ({reason(error)}); "
            f"both ranks need a certificate of the authority that {AUTHORITY} names"
        ) from error
    if heard != hears:
        end.close()
        raise LinkError(f"rank {peer} said other words after the TLS handshake than before")
    return end


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


def _check_own_handshake(found: Encryption, environment: Mapping[str, str]) -> None:
    """Let the certificate meet itself: what others would refuse fails here, before they see it."""
    to_calling, to_answering = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        found.calling.wrap_bio(to_calling, to_answering),
        found.answering.wrap_bio(to_answering, to_calling, server_side=True),
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
