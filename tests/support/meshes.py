"""Ranks of one process, connected by TCP."""

from __future__ import annotations

import socket
from itertools import combinations

from gradwire.links import Link
from gradwire.links.sockets import SocketLink


def sockets(world: int, timeout_s: float) -> list[Link]:
    """Return the links of all ranks, over connections on the loopback interface."""
    connections: list[dict[int, socket.socket]] = [{} for _ in range(world)]
    for low, high in combinations(range(world), 2):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            connections[high][low] = socket.create_connection(listening.getsockname())
            connections[low][high] = listening.accept()[0]
        for each in (connections[high][low], connections[low][high]):
            each.setblocking(False)
    return [SocketLink(rank, mine, timeout_s) for rank, mine in enumerate(connections)]
