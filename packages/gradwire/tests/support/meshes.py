"""Ranks of one process, connected by TCP, in plain text, with TLS, or with connections for floats."""

from __future__ import annotations

import select
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

from gradwire.links import Link
from gradwire.links.rendezvous.tls import Encryption, encrypted, encryption, handshake, wrapped
from gradwire.links.sockets import SocketLink
from gradwire.wire import TOS
from support.certificates import variables

Meshes = list[dict[int, socket.socket]]
"""Of each rank, its connections to the others."""


def sockets(world: int, timeout_s: float) -> list[Link]:
    """Return the links of all ranks, over connections on the loopback interface."""
    return linked(connected(world), timeout_s)


def tls(world: int, timeout_s: float) -> list[Link]:
    """Return the links of all ranks, over such connections with TLS."""
    return linked(with_tls(connected(world)), timeout_s)


def connected(world: int) -> Meshes:
    """Connect every two ranks."""
    connections: Meshes = [{} for _ in range(world)]
    for low, high in combinations(range(world), 2):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            connections[high][low] = socket.create_connection(listening.getsockname())
            connections[low][high] = listening.accept()[0]
    return connections


def with_tls(connections: Meshes) -> Meshes:
    """Encrypt both ends of every connection."""
    ours = encryption(variables())
    assert ours is not None
    with ThreadPoolExecutor(1) as other:
        for low, high in combinations(range(len(connections)), 2):
            calling, answering = connections[high], connections[low]
            answered = other.submit(answer, answering[high], ours, high, b"low", b"high")
            calling[low] = encrypted(calling[low], ours, low, b"high", b"low", 10.0)
            answering[high] = answered.result()
    return connections


def answer(
    connection: socket.socket, ours: Encryption, peer: int, says: bytes, hears: bytes
) -> ssl.SSLSocket:
    """Be the end that was called."""
    end = wrapped(connection, ours.server)
    try:
        for events in handshake(end, ours, peer, says, hears):
            poll = select.poll()
            poll.register(end, events)
            assert poll.poll(10_000)
    except BaseException:
        end.close()
        raise
    return end


def marked(world: int, timeout_s: float) -> list[Link]:
    """Return the links of all ranks, with second connections for floats."""
    return linked(connected(world), timeout_s, connected(world))


def linked(connections: Meshes, timeout_s: float, floats: Meshes | None = None) -> list[Link]:
    """Make the links of connections."""
    for mine in (*connections, *(floats or [])):
        for each in mine.values():
            each.setblocking(False)
    if floats is not None:
        pairs = enumerate(zip(connections, floats, strict=True))
        return [SocketLink(rank, mine, timeout_s, None, marks, TOS) for rank, (mine, marks) in pairs]
    return [SocketLink(rank, mine, timeout_s) for rank, mine in enumerate(connections)]
