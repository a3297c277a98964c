"""What the contract does not say: full buffers on both sides, threads that wait beside each other, ends."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.errors import LinkError
from gradwire.links import Link
from gradwire.links.sockets import SocketLink
from support.meshes import sockets

RunRanks = Callable[..., list[Any]]
BEYOND_ALL_BUFFERS = 32 << 20


def frame(number: int, nbytes: int = 100) -> torch.Tensor:
    return torch.full((nbytes,), number, dtype=torch.uint8)


def buffer(nbytes: int = 1000) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_all_send_before_they_receive_do_not_wait_for_each_other(
    run_ranks: RunRanks, world: int
) -> None:
    def rank(link: Link) -> int:
        after, before = (link.rank + 1) % world, (link.rank - 1) % world
        sending = link.isend(after, frame(link.rank + 1, BEYOND_ALL_BUFFERS))
        receiving = link.irecv(before, buffer(BEYOND_ALL_BUFFERS))
        sending.wait()
        came = receiving.wait()
        assert came.min() == came.max()
        return int(came[0])

    found = run_ranks(world, rank, links=sockets(world, 30.0))
    assert found == [(rank - 1) % world + 1 for rank in range(world)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 300_000), max_size=30))
def test_frames_of_any_lengths_arrive_whole(lengths: list[int]) -> None:
    one, other = sockets(2, 10.0)
    try:
        sent = [torch.randint(256, (nbytes,), dtype=torch.uint8) for nbytes in lengths]
        sendings = [one.isend(1, each) for each in sent]
        for each in sent:
            receiving = other.irecv(0, buffer(300_000))
            assert torch.equal(receiving.wait(), each)
        for sending in sendings:
            sending.wait()
    finally:
        one.close()
        other.close()


def test_a_frame_that_has_no_room_is_an_error_and_writes_nothing() -> None:
    one, other = sockets(2, 5.0)
    one.isend(1, frame(7, 101)).wait()
    room = buffer(100)
    receiving, next_one = other.irecv(0, room), other.irecv(0, buffer())
    with pytest.raises(LinkError, match="rank 1 receiving from rank 0: expected a frame of at most 100"):
        receiving.wait()
    with pytest.raises(LinkError, match="at most 100 bytes, got one of 101"):
        next_one.wait()
    assert not room.any()


def test_half_a_frame_is_none() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = SocketLink(0, {1: ours}, 5.0)
    receiving = link.irecv(1, buffer())
    theirs.sendall(struct.pack("<Q", 100) + b"x" * 60)
    theirs.close()
    with pytest.raises(LinkError, match="rank 0 receiving from rank 1: rank 1 has closed its link"):
        receiving.wait()


def test_what_trickles_in_byte_by_byte_is_put_together() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = SocketLink(0, {1: ours}, 10.0)
    receiving, second = link.irecv(1, buffer()), link.irecv(1, buffer())

    def trickle() -> None:
        for byte in struct.pack("<Q", 3) + b"abc" + struct.pack("<Q", 0):
            time.sleep(0.002)
            theirs.sendall(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    assert bytes(receiving.wait().tolist()) == b"abc"
    assert second.wait().numel() == 0
    thread.join()
    theirs.close()


def test_threads_wait_beside_each_other_each_for_another_peer() -> None:
    links = sockets(3, 10.0)
    receivings = [links[0].irecv(source, buffer()) for source in (1, 2)]
    came: dict[int, int] = {}

    def wait(number: int) -> None:
        came[number] = int(receivings[number].wait()[0])

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    started = time.monotonic()
    for number in (1, 0):
        links[number + 1].isend(0, frame(number + 1)).wait()
    for thread in threads:
        thread.join(5)
    assert came == {0: 1, 1: 2}
    assert time.monotonic() - started < 2


def test_a_second_thread_that_waits_for_the_same_peer_is_told_so() -> None:
    one, other = sockets(2, 10.0)
    receivings = [one.irecv(1, buffer()) for _ in range(2)]
    first = threading.Thread(target=receivings[0].wait)
    first.start()
    time.sleep(0.05)
    with pytest.raises(LinkError, match="rank 0 receiving from rank 1: another thread is waiting for rank 1"):
        receivings[1].wait()
    for number in range(2):
        other.isend(0, frame(number)).wait()
    first.join(5)
    assert int(receivings[1].wait()[0]) == 1


def test_a_rank_that_is_no_peer_is_told_so() -> None:
    one, _other = sockets(2, 5.0)
    for stranger in (0, 2):
        with pytest.raises(
            LinkError, match=f"rank 0 sending to rank {stranger}: this link has no connection to that rank"
        ):
            one.isend(stranger, frame(1))


def test_a_wait_may_be_longer_than_a_poll_can_sleep() -> None:
    one, other = sockets(2, 1e7)
    receiving = one.irecv(1, buffer())
    threading.Timer(0.05, lambda: other.isend(0, frame(3)).wait()).start()
    assert int(receiving.wait()[0]) == 3


def test_a_dead_ranks_children_do_not_keep_its_connections_open() -> None:
    one, other = sockets(2, 10.0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # like a data loader's worker, it lives on
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    receiving = other.irecv(0, buffer())
    del one  # what the kernel does with the sockets of a process that is killed
    gc.collect()
    started = time.monotonic()
    with pytest.raises(LinkError, match="rank 0 has closed its link"):
        receiving.wait()
    assert time.monotonic() - started < 5
    os.close(write)
    os.waitpid(child, 0)


def test_a_dead_peer_is_an_error_even_where_its_signal_ends_the_process() -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        one, other = sockets(2, 5.0)
        other.close()
        for _ in range(3):
            with pytest.raises(LinkError, match="rank 1 has closed its link"):
                one.isend(1, frame(6, BEYOND_ALL_BUFFERS)).wait()
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_conversation_does_not_stand_still_because_another_thread_waits() -> None:
    """A hundred times there and back beside a thread that waits for a third rank all the while."""
    links = sockets(3, 30.0)
    silent = links[0].irecv(2, buffer())
    waiting = threading.Thread(target=silent.wait)
    waiting.start()

    def answer() -> None:
        for _ in range(100):
            links[1].isend(0, links[1].irecv(0, buffer()).wait()).wait()

    answering = threading.Thread(target=answer)
    answering.start()
    started = time.monotonic()
    for number in range(100):
        links[0].isend(1, frame(number)).wait()
        assert int(links[0].irecv(1, buffer()).wait()[0]) == number
    assert time.monotonic() - started < 5
    links[2].isend(0, frame(9)).wait()
    for thread in (waiting, answering):
        thread.join(5)
        assert not thread.is_alive()


def test_closing_wakes_the_own_waits_too() -> None:
    links = sockets(2, 30.0)
    receiving = links[0].irecv(1, buffer())
    errors: list[LinkError] = []

    def wait() -> None:
        try:
            receiving.wait()
        except LinkError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    links[0].close()
    thread.join(5)
    assert [str(error) for error in errors] == ["rank 0 receiving from rank 1: this rank has closed its link"]


class _LateTurn:
    """A lock that the test's own thread gets late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.1)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_who_wakes_before_closing_is_done_is_told_of_the_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    links = sockets(2, 30.0)
    errors: list[LinkError] = []

    def wait(receiving: Any) -> None:
        try:
            receiving.wait()
        except LinkError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, args=(links[0].irecv(1, buffer()),))
    thread.start()
    time.sleep(0.05)
    own = links[0]
    assert isinstance(own, SocketLink)
    monkeypatch.setattr(own._channels[1], "turn", _LateTurn())
    own.close()
    thread.join(5)
    assert [str(error) for error in errors] == ["rank 0 receiving from rank 1: this rank has closed its link"]


def test_a_link_that_nobody_holds_is_closed() -> None:
    one, other = sockets(2, 10.0)
    del one
    gc.collect()
    with pytest.raises(LinkError, match="rank 0 has closed its link"):
        other.irecv(0, buffer()).wait()


def test_a_send_to_a_peer_that_is_gone_is_an_error_and_what_it_sent_can_be_read() -> None:
    one, other = sockets(2, 5.0)
    other.isend(0, frame(5)).wait()
    other.close()
    assert int(one.irecv(1, buffer()).wait()[0]) == 5
    with pytest.raises(LinkError, match="rank 0 sending to rank 1: rank 1 has closed its link"):
        one.isend(1, frame(6, BEYOND_ALL_BUFFERS)).wait()


def served(links: Sequence[Link], first: Callable[[int], None]) -> list[str]:
    """Let rank 0 serve rank 1 and then rank 2, who waits meanwhile; return what each of them says."""
    said = ["", "", ""]

    def serve() -> str:
        for number in range(8):
            assert int(links[0].irecv(1, buffer()).wait(keepalive=True)[0]) == number
        links[0].isend(2, frame(9)).wait(keepalive=True)
        return "served"

    def be_first() -> str:
        for number in range(8):
            first(number)
            links[1].isend(0, frame(number)).wait(keepalive=True)
        return "sent"

    def be_last() -> str:
        links[2].isend(0, frame(5, BEYOND_ALL_BUFFERS))
        return str(int(links[2].irecv(0, buffer()).wait(keepalive=True)[0]))

    def act(rank: int, role: Callable[[], str]) -> None:
        try:
            said[rank] = role()
        except LinkError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=act, args=each) for each in enumerate((serve, be_first, be_last))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return said


def test_a_rank_that_is_served_last_does_not_take_the_others_for_dead() -> None:
    assert served(sockets(3, 0.8), lambda _: time.sleep(0.25)) == ["served", "sent", "9"]


def test_a_rank_that_is_served_last_notices_that_all_stand_still() -> None:
    started = time.monotonic()
    said = served(sockets(3, 0.8), lambda number: time.sleep(3.0 if number == 4 else 0.2))
    assert said[0].startswith("rank 0 receiving from rank 1: no progress within 0.8 s; check")
    assert said[2].startswith("rank 2 receiving from rank 0: no progress within 0.8 s; check")
    assert time.monotonic() - started < 8


def test_keepalives_come_between_frames_and_pile_up_nowhere() -> None:
    links = sockets(3, 0.2)
    for number in range(12):
        time.sleep(0.06)
        links[0].isend(1, frame(number)).wait(keepalive=True)
        assert int(links[1].irecv(0, buffer()).wait(keepalive=True)[0]) == number
        links[1].isend(0, frame(number)).wait(keepalive=True)
        assert int(links[0].irecv(1, buffer()).wait(keepalive=True)[0]) == number
    links[2].isend(0, frame(3)).wait(keepalive=True)
    assert int(links[0].irecv(2, buffer()).wait(keepalive=True)[0]) == 3
    links[0].isend(2, frame(4)).wait(keepalive=True)
    assert int(links[2].irecv(0, buffer()).wait(keepalive=True)[0]) == 4


def test_reading_keepalives_leaves_a_frame_to_the_thread_that_waits_for_it() -> None:
    """Taken by another thread it would leave that one asleep: nothing more comes to wake it."""
    one, other = sockets(2, 5.0)
    receiving = one.irecv(1, buffer())
    other.isend(0, frame(5)).wait()
    one.keep_alive(0.0)
    assert not receiving.done  # type: ignore[attr-defined] # one of a SocketLink
    assert int(receiving.wait()[0]) == 5
