"""What strikes from outside: bytes of port scans, at the rendezvous and at every port of the ranks."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from random import Random

_LISTENING = "0A"


def scan(address: tuple[str, int], draw: Random, *, rude: bool) -> bool:
    """Connect, say something that nobody expects, and leave; tell if that was possible.

    A rude one does not wait for an answer, says nothing at all or resets the connection. torch's TCP store
    stands still for seconds when a connection is gone before it was accepted, so there scans are patient.
    """
    words = [
        b"GET / HTTP/1.1\r\nHost: scan\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(32),  # the hello of TLS
        b"SSH-2.0-scan\r\n",
        draw.randbytes(draw.randrange(1, 8)),
        draw.randbytes(draw.randrange(8, 4096)),
    ]
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    came = False
    with contextlib.suppress(OSError), socket.socket(family) as scanner:
        scanner.settimeout(0.2)
        scanner.connect(address)
        came = True
        scanner.sendall(draw.choice([b"", *words] if rude else words))
        if not rude:
            scanner.recv(1)
        elif draw.random() < 0.3:  # reset instead of an orderly end
            scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    return came


def listening(pids: Sequence[int]) -> list[tuple[str, int]]:
    """Return the addresses at which these processes accept connections."""
    found: list[tuple[str, int]] = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it may have ended
            sockets = {_target(pid, name) for name in os.listdir(f"/proc/{pid}/fd")}
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in sockets:
                        found.append(_address(fields[1]))
    return found


def _target(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}")
    except OSError:
        return ""


def _address(text: str) -> tuple[str, int]:
    digits, _, port = text.partition(":")
    words = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    host = socket.inet_ntop(socket.AF_INET6 if len(words) == 16 else socket.AF_INET, words)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port, 16)
