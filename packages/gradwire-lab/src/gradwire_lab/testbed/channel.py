"""Messages between the testbed and its supervisor: JSON and open files over a socket pair."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Message = dict[str, Any]
_LENGTH = struct.Struct("!I")
_MOST_FILES = 253  # the kernel's own limit for a message


class Channel:
    """One end of a socket pair that carries JSON messages and open files.

    ``receive`` raises ``TimeoutError`` after its ``timeout_s``.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self._end.fileno()

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Send a message and duplicates of open files. Raises ``OSError`` if the other end is closed."""
        body = json.dumps(message).encode("ascii")
        if files:
            socket.send_fds(self._end, [_LENGTH.pack(len(body))], list(files))
        else:
            self._end.sendall(_LENGTH.pack(len(body)))
        self._end.sendall(body)

    def receive(self, timeout_s: float | None = None) -> tuple[Message, list[int]] | None:
        """Return the next message and its files, or None if the other end is closed."""
        self._end.settimeout(timeout_s)
        try:
            head, files, _, _ = socket.recv_fds(self._end, _LENGTH.size, _MOST_FILES)
            for file in files:
                os.set_inheritable(file, False)  # recv_fds has no option for it
            rest = self._exactly(_LENGTH.size - len(head)) if head else None
            body = None if rest is None else self._exactly(_LENGTH.unpack(head + rest)[0])
        except ConnectionError:
            return None
        finally:
            self._end.settimeout(None)
        return None if body is None else (json.loads(body), files)

    def close(self) -> None:
        """Close this end; the other one then receives None."""
        self._end.close()

    def _exactly(self, nbytes: int) -> bytes | None:
        body = bytearray()
        while len(body) < nbytes:
            part = self._end.recv(nbytes - len(body))
            if not part:
                return None
            body += part
        return bytes(body)


def pair() -> tuple[Channel, Channel]:
    """Return two connected channels."""
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


# Ctrl-C as an event to wait for, so that it can't interrupt a run in the middle of a message.


@contextmanager
def interrupts() -> Iterator[socket.socket]:
    """Yield a socket that receives a byte for every SIGINT, instead of a ``KeyboardInterrupt``.

    If SIGINT is ignored, or if this isn't the main thread, no byte arrives, because this thread mustn't act
    on the signal.
    """
    arrivals, notices = socket.socketpair()
    with arrivals, notices:
        if threading.current_thread() is not threading.main_thread() or _is_ignored():
            yield arrivals
            return
        arrivals.setblocking(False)
        notices.setblocking(False)
        handler = signal.signal(signal.SIGINT, lambda *_: None)
        before = signal.set_wakeup_fd(notices.fileno(), warn_on_full_buffer=False)
        try:
            yield arrivals
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGINT, handler)


def _is_ignored() -> bool:
    return signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
