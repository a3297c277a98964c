"""Frames whose floats travel on a connection of their own, seen from outside by plain sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links import Link
from gradwire.links.sockets import SocketLink
from support.meshes import connected, linked, marked

RunRanks = Callable[..., list[Any]]
BEYOND_ALL_BUFFERS = 32 << 20
LENGTH = struct.Struct("<II")  # of the frame, and of its floats


def noise(nbytes: int) -> torch.Tensor:
    return torch.randint(256, (nbytes,), dtype=torch.uint8)


def buffer(nbytes: int = 1000) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)


@pytest.fixture
def opened() -> Iterator[tuple[SocketLink, socket.socket, socket.socket]]:
    """Rank 0's link, and rank 1's ends of both connections."""
    control, floats = socket.socketpair(), socket.socketpair()
    link = linked([{1: control[0]}], 0.3, [{1: floats[0]}])[0]
    assert isinstance(link, SocketLink)
    for each in (control[1], floats[1]):
        each.settimeout(5)
    yield link, control[1], floats[1]
    link.close()
    for each in (control[1], floats[1]):
        each.close()


def test_nothing_but_the_floats_is_on_the_marked_connection(
    opened: tuple[SocketLink, socket.socket, socket.socket],
) -> None:
    link, control, floats = opened
    first, second, third = noise(100), noise(50), noise(36)
    link.isend_marked(1, first, 64).wait()
    link.isend(1, second).wait()
    link.isend_marked(1, third, 4).wait()
    wanted = LENGTH.pack(100, 64) + bytes(first[:36].tolist()) + LENGTH.pack(50, 0) + bytes(second.tolist())
    wanted += LENGTH.pack(36, 4) + bytes(third[:32].tolist())
    assert control.recv(1000, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == wanted
    assert floats.recv(1000) == bytes(first[36:].tolist()) + bytes(third[32:].tolist())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50_000)), max_size=20))
def test_frames_with_and_without_floats_arrive_whole_and_in_order(sizes: list[tuple[int, int]]) -> None:
    one, other = marked(2, 10.0)
    try:
        sent = [noise(head + 4 * count) for head, count in sizes]
        sendings = [
            one.isend_marked(1, each, 4 * count) for each, (_, count) in zip(sent, sizes, strict=True)
        ]
        receivings = [other.irecv(0, buffer(200_200)) for _ in sent]
        for each, receiving in zip(sent, receivings, strict=True):
            assert torch.equal(receiving.wait(), each)
        for sending in sendings:
            sending.wait()
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_all_send_floats_before_they_receive_do_not_wait_for_each_other(
    run_ranks: RunRanks, world: int
) -> None:
    def rank(link: Link) -> int:
        after, before = (link.rank + 1) % world, (link.rank - 1) % world
        large = torch.full((BEYOND_ALL_BUFFERS,), link.rank + 1, dtype=torch.uint8)
        sendings = [link.isend_marked(after, large, floats) for floats in (BEYOND_ALL_BUFFERS - 40, 0)]
        receivings = [link.irecv(before, buffer(BEYOND_ALL_BUFFERS)) for _ in sendings]
        for sending in sendings:
            sending.wait()
        came = [receiving.wait() for receiving in receivings]
        assert all(each.min() == each.max() == came[0][0] for each in came)
        return int(came[0][0])

    found = run_ranks(world, rank, links=marked(world, 30.0))
    assert found == [(rank - 1) % world + 1 for rank in range(world)]


def test_floats_that_do_not_come_are_an_error_that_names_their_connection(
    opened: tuple[SocketLink, socket.socket, socket.socket],
) -> None:
    link, control, floats = opened
    control.sendall(LENGTH.pack(40, 8) + bytes(32))
    floats.sendall(bytes(7))
    waiting = r"rank 0 receiving from rank 1 \(marked 0x28\): "
    receiving = link.irecv(1, buffer())
    with pytest.raises(LinkTimeoutError, match=f"{waiting}no progress within 0.3 s"):
        receiving.wait()
    floats.close()
    with pytest.raises(LinkError, match=f"{waiting}.*has closed its link"):
        receiving.wait()


def test_more_floats_than_the_frame_has_are_an_error(
    opened: tuple[SocketLink, socket.socket, socket.socket],
) -> None:
    link, control, _ = opened
    room = buffer()
    control.sendall(LENGTH.pack(40, 44) + bytes(40))
    with pytest.raises(
        LinkError, match=r"rank 0 receiving from rank 1: .* got 40 bytes with 44 bytes of floats"
    ):
        link.irecv(1, room).wait()
    assert not room.any()


def test_a_link_without_marked_connections_sends_such_frames_whole() -> None:
    one, other = linked(connected(2), 5.0)
    sent = noise(100)
    one.isend_marked(1, sent, 64).wait()
    assert torch.equal(other.irecv(0, buffer()).wait(), sent)
    assert one.tos == 0
    for link in (one, other):
        link.close()


def test_closing_a_link_closes_both_connections(
    opened: tuple[SocketLink, socket.socket, socket.socket],
) -> None:
    link, control, floats = opened
    pending = link.isend_marked(1, noise(BEYOND_ALL_BUFFERS), BEYOND_ALL_BUFFERS - 32)
    link.close()
    with pytest.raises(LinkError, match="this rank has closed its link"):
        pending.wait()
    while floats.recv(1 << 20):
        pass
    assert control.recv(100)
    assert control.recv(100) == b""
