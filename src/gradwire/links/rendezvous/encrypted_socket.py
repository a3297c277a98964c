"""A TLS socket that behaves as a plain, non-blocking one does where a link moves frames."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Sequence
from typing import Any

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
