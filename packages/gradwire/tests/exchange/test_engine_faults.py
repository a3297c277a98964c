"""Failures of a run: the native engine raises the errors of the Python walk, and leaves nothing behind."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.codecs.native import NativeCodec
from gradwire.errors import ExchangeError, LinkError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.views import ParameterViews
from gradwire.links import Link
from gradwire.links.sockets import SocketLink
from gradwire.plan import Plan
from gradwire.wire import HEADER_NBYTES, PARTING, Header, frame_memory, memory_of, parting_frame, seal_frame
from support.every_codec import SPECS
from support.in_python import InPython
from support.meshes import sockets

RunRanks = Callable[..., list[Any]]
NATIVE = [spec for spec in SPECS if isinstance(parse(spec), NativeCodec)]
ALGORITHMS = ["ring", "tree", "butterfly", "star", "pairwise"]


# Failures: what the other end of a rank's connection does, and the error of the rank, by both.

CODEC = parse("fp8")
PLAN = Plan(CODEC, "ring", segment_nbytes=1 << 14)
COUNT = 16_384
SEGMENT = 4096
MEMORY = torch.empty(64, dtype=torch.uint8)


class Peer:
    """The other end of rank 0's connection, which reads nothing unless it is asked to."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, frame: torch.Tensor, nbytes: int | None = None) -> None:
        """Send a frame, or a part of it, after its length."""
        data = bytes(memory_of(frame))
        self.connection.sendall(struct.pack("<Q", len(data)) + data[:nbytes])

    def frame(self, count: int = SEGMENT, payload: bytes | None = None, **named: int) -> torch.Tensor:
        """Return the first frame of a correct rank, with some fields of its header replaced."""
        memory = frame_memory(HEADER_NBYTES + 4 * SEGMENT)
        body = memory[HEADER_NBYTES:]
        nbytes = CODEC.encode(torch.ones(SEGMENT), body).numel()
        if payload is not None:
            nbytes = len(payload)
            body[:nbytes] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        fields = {
            "codec_id": CODEC.wire_id,
            "fingerprint": CODEC.fingerprint,
            "sequence": 0,
            "flags": 1,
            "count": count,
        }
        return seal_frame(memory, nbytes, **(fields | named))

    def altered(self, position: int) -> torch.Tensor:
        """Return a correct frame with one bit flipped."""
        frame = self.frame().clone()
        frame[position] ^= 4
        return frame


def ends_within_a_frame(peer: Peer) -> None:
    peer.send(peer.frame(), 50)
    peer.connection.close()


def ends_after_a_frame(peer: Peer) -> None:
    peer.send(peer.frame())
    peer.connection.close()


FAULTS: dict[str, Callable[[Peer], None]] = {
    "is gone": lambda peer: peer.connection.close(),
    "stops": lambda _: None,
    "stops within a length": lambda peer: peer.connection.sendall(b"\x10"),
    "stops within a frame": lambda peer: peer.send(peer.frame(), 50),
    "ends within a frame": ends_within_a_frame,
    "ends after a frame": ends_after_a_frame,
    "only keeps alive": lambda peer: peer.connection.sendall(b"\xff" * 80),
    "announces too much": lambda peer: peer.connection.sendall(struct.pack("<Q", 1 << 40)),
    "sends nothing as a frame": lambda peer: peer.connection.sendall(struct.pack("<Q", 0)),
    "sends only empty frames": lambda peer: peer.connection.sendall(struct.pack("<Q", 0) * 3),
    "sends half a header": lambda peer: peer.send(peer.frame()[:16].clone()),
    "speaks another protocol": lambda peer: peer.send(peer.altered(0)),
    "has an altered header": lambda peer: peer.send(peer.altered(9)),
    "has an altered payload": lambda peer: peer.send(peer.altered(40)),
    "has another codec": lambda peer: peer.send(peer.frame(codec_id=parse("bf16").wire_id)),
    "has another spec": lambda peer: peer.send(peer.frame(fingerprint=1)),
    "has another length": lambda peer: peer.send(peer.frame(count=SEGMENT - 1)),
    "lost a frame": lambda peer: peer.send(peer.frame(sequence=1)),
    "sends a sum": lambda peer: peer.send(peer.frame(flags=0)),
    "has a payload that is too large": lambda peer: peer.send(
        peer.frame(payload=bytes(CODEC.max_nbytes(SEGMENT) + 1))
    ),
    "has a payload that is too small": lambda peer: peer.send(peer.frame(payload=b"abc")),
    "is at another step": lambda peer: peer.send(peer.frame(flags=1 | 9 << 1)),
    "has left at another step": lambda peer: peer.send(parting_frame([(1, 5)], has_left=True)),
    "reports another rank's step": lambda peer: peer.send(parting_frame([(1, 5), (0, 3)], has_left=False)),
    "announces less than it sends": lambda peer: peer.send(cut_header(peer.frame())),
}


def cut_header(frame: torch.Tensor) -> torch.Tensor:
    """Return a frame whose header announces more bytes than follow."""
    header = Header.unpack(bytes(memory_of(frame)[:HEADER_NBYTES]))
    return torch.cat(
        [frame[:HEADER_NBYTES], frame[HEADER_NBYTES : HEADER_NBYTES + header.payload_nbytes - 9]]
    )


def failure(
    link: SocketLink, *, native: bool, step: int | None, views: ParameterViews | None = None
) -> tuple[str, str, torch.Tensor]:
    """Return the error of rank 0, its cause, and its bucket."""
    link.step = step
    bucket = torch.ones(COUNT)
    used: Link = link if native else InPython(link)
    used.step = step
    with pytest.raises(ExchangeError) as caught:
        Exchange(used, PLAN).run(bucket, BucketRequest(views=views, timeout_s=0.4))
    cause = caught.value.__cause__
    return str(caught.value), f"{type(cause).__name__}: {cause}", bucket


def finished(sums: torch.Tensor) -> torch.Tensor:
    """Return the average that the engine may have made of a sum, which Python finishes when it sends it."""
    average = torch.empty_like(sums)
    CODEC.decode_finished(CODEC.encode(sums), average, 2)
    return average


@pytest.mark.parametrize("step", [None, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_failures_have_the_same_error(fault: str, step: int | None, native_runs: list[int]) -> None:
    found = []
    for native in (False, True):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        link = SocketLink(0, {1: ours}, 5.0)
        FAULTS[fault](Peer(theirs))
        found.append(failure(link, native=native, step=step))
        assert ours.fileno() == -1, "the link is closed"
        theirs.close()
    (*expected, sums), (*errors, values) = found
    assert errors == expected
    for walked, own in zip(torch.split(sums, SEGMENT), torch.split(values, SEGMENT), strict=True):
        assert torch.equal(own, walked) or torch.equal(own, finished(walked))
    assert native_runs == [0]
    assert PARTING not in {parse(spec).wire_id for spec in SPECS}


Named = dict[str, Any]
OF_SECOND_CODEC: dict[str, Callable[[Peer, Named], torch.Tensor]] = {
    "the codec differs: expected CODEC, got fp8": lambda peer, _: peer.frame(sequence=1),
    "out of order: expected frame 1, got frame 5": lambda peer, named: peer.frame(sequence=5, **named),
    "checksum": lambda peer, named: flipped(peer.frame(sequence=1, payload=bytes(SEGMENT), **named)),
    "CODEC.* payload": lambda peer, named: peer.frame(payload=bytes(101), sequence=1, **named),
}


def flipped(frame: torch.Tensor) -> torch.Tensor:
    """Return the frame with one bit of its payload flipped."""
    frame[HEADER_NBYTES + 7] ^= 1
    return frame


@pytest.mark.parametrize("spec", ["bf16", "topk:0.25", "lossless"])
@pytest.mark.parametrize("problem", OF_SECOND_CODEC)
def test_failures_in_frames_of_a_second_codec_have_the_same_error(
    problem: str, spec: str, native_runs: list[int]
) -> None:
    codec = parse(spec)
    views = ParameterViews((COUNT // 2, COUNT // 2), (CODEC, codec))
    named = {"codec_id": codec.wire_id, "fingerprint": codec.fingerprint}
    found = []
    for native in (False, True):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        link, peer = SocketLink(0, {1: ours}, 5.0), Peer(theirs)
        peer.send(peer.frame())
        peer.send(OF_SECOND_CODEC[problem](peer, named))
        found.append(failure(link, native=native, step=None, views=views))
        assert ours.fileno() == -1, "the link is closed"
        theirs.close()
    (*expected, _), (*errors, _) = found
    assert errors == expected
    assert re.search(problem.replace("CODEC", codec.name), errors[0])
    assert native_runs == [0]


def test_a_close_by_another_thread_ends_the_run() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = SocketLink(0, {1: ours}, 60.0)
    closing = threading.Timer(0.2, link.close)
    closing.start()
    with pytest.raises(ExchangeError, match="this rank has closed its link"):
        Exchange(link, PLAN).all_reduce(torch.ones(COUNT))
    closing.join()
    assert ours.fileno() == -1
    theirs.close()


def test_other_threads_keep_off_a_link_in_a_run() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = SocketLink(0, {1: ours}, 60.0)
    failures: list[BaseException] = []

    def exchange() -> None:
        try:
            Exchange(link, PLAN).all_reduce(torch.ones(COUNT))
        except ExchangeError as error:
            failures.append(error)

    thread = threading.Thread(target=exchange)
    thread.start()
    received = theirs.recv(8)  # the run has begun
    link.keep_alive(0.0)
    with pytest.raises(LinkError, match="another thread is exchanging over this link"):
        link.isend(1, MEMORY)
    with pytest.raises(LinkError, match="another thread is exchanging over this link"):
        link.irecv(1, MEMORY)
    link.close()
    thread.join(10.0)
    assert len(failures) == 1
    while part := theirs.recv(1 << 20):
        received += part
    frames = 0
    while received:
        (nbytes,) = struct.unpack_from("<Q", received)
        assert nbytes < 1 << 20, "no keepalive lies between the bytes of a frame"
        received, frames = received[8 + nbytes :], frames + 1
    assert frames >= 1
    theirs.close()


def test_an_interrupt_before_the_run_leaves_the_link_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = sockets(2, 30.0)
    exchanges = [Exchange(each, PLAN) for each in (first, second)]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gradwire.exchange.exchange.EngineRun", interrupted)
        with pytest.raises(KeyboardInterrupt):
            exchanges[0].all_reduce(torch.ones(COUNT))
    buckets = [torch.ones(COUNT), 3 * torch.ones(COUNT)]
    other = threading.Thread(target=exchanges[1].all_reduce, args=(buckets[1],))
    other.start()
    exchanges[0].all_reduce(buckets[0])
    other.join(30.0)
    assert torch.equal(buckets[0], 2 * torch.ones(COUNT))
    assert torch.equal(buckets[0], buckets[1])


@pytest.mark.parametrize(
    "position", ["gradwire._native.engine.run", "gradwire.links.channel.Channel.restore"]
)
def test_an_interrupt_beside_the_run_closes_every_connection(
    position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    for ours, _ in pairs:
        ours.setblocking(False)
    link = SocketLink(0, {rank: ours for rank, (ours, _) in enumerate(pairs, 1)}, 0.2)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(position, interrupted)
    with pytest.raises(KeyboardInterrupt):
        Exchange(link, PLAN).all_reduce(torch.ones(COUNT))
    assert [ours.fileno() for ours, _ in pairs] == [-1, -1]
    for _, theirs in pairs:
        theirs.close()


def test_nothing_follows_a_part_of_a_frame_for_which_memory_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = SocketLink(0, {1: ours}, 5.0)
    link.step = 3

    def run_without_memory(*_: object, **__: object) -> None:
        ours.send(b"a part of a frame")
        raise MemoryError

    monkeypatch.setattr("gradwire._native.engine.run", run_without_memory)
    with pytest.raises(MemoryError):
        Exchange(link, PLAN).all_reduce(torch.ones(COUNT))
    assert ours.fileno() == -1
    assert theirs.recv(1 << 20) == b"a part of a frame"
    assert theirs.recv(1 << 20) == b""
    theirs.close()


def test_a_thread_in_a_run_does_not_abort_the_end_of_the_process() -> None:
    script = """
import socket, threading, torch
from gradwire import Plan
from gradwire.exchange import Exchange
from gradwire.links.sockets import SocketLink
ours, theirs = socket.socketpair()
ours.setblocking(False)
link = SocketLink(0, {1: ours}, 60.0)
threading.Thread(target=lambda: Exchange(link, Plan()).all_reduce(torch.ones(10)), daemon=True).start()
theirs.recv(8)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
