"""A connection that somebody listens to, and may alter."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Tap:
    """Two ends of a connection, ``low`` and ``high``, and all that has gone between them, ``heard``."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.spoils = False
        self.low, near = socket.socketpair()
        self.high, far = socket.socketpair()
        self._inner = (near, far)
        self._threads = [
            threading.Thread(target=self._carry, args=ends, daemon=True)
            for ends in ((near, far), (far, near))
        ]

    def __enter__(self) -> Tap:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._inner:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (*self._inner, self.low, self.high):
            each.close()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.heard += data
                target.sendall(data[:-1] + bytes([data[-1] ^ 1]) if self.spoils else data)
