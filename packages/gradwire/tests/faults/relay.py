"""A relay between a rank's connections and its peers, so that frames of native code meet faults, too.

The engine writes to sockets, past all of Python's links. Therefore, each connection of a link ends at two
threads of its own process, which pass on what they read: bytes to the rank, and whole frames to the peer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from faults.wire import Armed, Held
from gradwire.links import ProcessGroupLink
from gradwire.links.base import Link, Receiving, Sending
from gradwire.links.channel import _KEEPALIVE, _LENGTH
from gradwire.sync import group as sync_group
from gradwire.wire import frame_of

_PART_NBYTES = 1 << 16
_BUFFER_NBYTES = 1 << 13
"""So small that the rank is hardly ahead of its relay: while frames leave late, it still sends."""


class RelayedLink(ProcessGroupLink):
    """A link whose connections have a relay; the frames for peers pass ``armed``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        far = {peer: channel.socket for peer, channel in self._channels.items()}
        self.armed = Armed(_Peers(self, far), lambda to: _end(far[to]))
        for peer, channel in self._channels.items():
            channel.socket, near = _connected()
            channel.fd = channel.socket.fileno()
            far[peer].setblocking(True)
            for act, *ends in (self._to_peer, peer, near, far[peer]), (_to_rank, far[peer], near):
                threading.Thread(target=act, args=ends, daemon=True).start()

    def _to_peer(self, peer: int, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while True:
                (nbytes,) = _LENGTH.unpack(_read(near, _LENGTH.size))
                if nbytes == _KEEPALIVE:
                    far.sendall(_LENGTH.pack(nbytes))
                else:
                    self.armed.isend(peer, frame_of(_read(near, nbytes)))
        _end(near, far)


class _Peers(Link):
    """The connections to the peers; a frame that is sent has left."""

    def __init__(self, link: Link, connections: Mapping[int, socket.socket]) -> None:
        self.rank, self.world, self.timeout_s = link.rank, link.world, link.timeout_s
        self._connections = connections

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        self._connections[to].sendall(_LENGTH.pack(frame.numel()) + frame.numpy().tobytes())
        return Held()

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        raise NotImplementedError

    def close(self) -> None:
        _end(*self._connections.values())

    def keep_alive(self, timeout_s: float) -> None:
        raise NotImplementedError


def relays() -> list[Armed]:
    """Let all links that are made from now on have a relay; return the list of what is armed."""
    made: list[Armed] = []

    def make(*args: Any, **kwargs: Any) -> RelayedLink:
        link = RelayedLink(*args, **kwargs)
        made.append(link.armed)
        return link

    vars(sync_group)["ProcessGroupLink"] = make
    return made


def _to_rank(far: socket.socket, near: socket.socket) -> None:
    with suppress(OSError):
        while part := far.recv(_PART_NBYTES):
            near.sendall(part)
    _end(near, far)


def _read(connection: socket.socket, nbytes: int) -> bytes:
    data = connection.recv(nbytes, socket.MSG_WAITALL)
    if len(data) < nbytes:
        raise EOFError
    return data


def _connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new TCP connection, since the kernel's pairs of sockets aren't TCP's."""
    own = socket.socket()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_NBYTES)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_NBYTES)
        own.connect(listener.getsockname())
        other, _ = listener.accept()
    for each in (own, other):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own.setblocking(False)
    return own, other


def _end(*connections: socket.socket) -> None:
    for each in connections:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
