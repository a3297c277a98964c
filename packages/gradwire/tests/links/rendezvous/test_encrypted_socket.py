"""Frames over TLS: nothing of them can be read on the way, and they arrive as without it."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from gradwire.codecs import parse
from gradwire.errors import LinkError
from gradwire.exchange import Exchange
from gradwire.links import Link, ProcessGroupLink
from gradwire.links.rendezvous.tls import EncryptedSocket
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.certificates import needs_openssl, variables
from support.meshes import Meshes, linked, tls, with_tls


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


RunProcesses = Callable[..., list[Any]]
RunRanks = Callable[..., list[Any]]
TIMEOUT_S = 3.0
BEYOND_ALL_BUFFERS = 48 << 20
SPOILT = "(bad record mac|record layer failure)"  # by the version of OpenSSL
pytestmark = needs_openssl


@pytest.mark.parametrize("way", ["plain", "tls"])
def test_nothing_of_a_frame_can_be_read_on_the_way(way: str) -> None:
    payload = torch.randint(256, (1 << 16,), dtype=torch.uint8)
    with Tap() as tap:
        connections: Meshes = [{1: tap.low}, {0: tap.high}]
        links = linked(with_tls(connections) if way == "tls" else connections, TIMEOUT_S)
        for sender, receiver in ((0, 1), (1, 0)):
            sending = links[sender].isend(receiver, payload)
            got = links[receiver].irecv(sender, torch.zeros(1 << 17, dtype=torch.uint8)).wait()
            sending.wait()
            assert torch.equal(got, payload)
        for link in links:
            link.close()
    said = payload.numpy().tobytes()
    readable = sum(said[i : i + 8] in tap.heard for i in range(0, len(said), 512))
    assert readable == (0 if way == "tls" else len(said) // 512)
    assert len(tap.heard) > 2 * len(said)


@pytest.mark.parametrize("nbytes", [1, 100, (1 << 14) - 8, 1 << 14, (1 << 20) + 1, BEYOND_ALL_BUFFERS])
def test_frames_cross_each_other_whatever_their_size(run_ranks: RunRanks, nbytes: int) -> None:
    frames = [torch.randint(256, (nbytes,), dtype=torch.uint8) for _ in range(2)]

    def rank(link: Link) -> bool:
        peer = 1 - link.rank
        sendings = [link.isend(peer, frames[link.rank]) for _ in range(2)]
        buffers = [torch.zeros(nbytes + 5, dtype=torch.uint8) for _ in range(2)]
        receivings = [link.irecv(peer, buffer) for buffer in buffers]
        for sending in sendings:  # before anybody waits for what comes
            sending.wait()
        return all(torch.equal(receiving.wait(), frames[peer]) for receiving in receivings)

    assert run_ranks(2, rank, links=tls(2, 20.0)) == [True, True]


def test_receives_that_are_posted_late_find_what_came_in_one_record(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> list[int]:
        if link.rank == 0:
            link.isend(1, torch.full((16,), 3, dtype=torch.uint8)).wait()
            for i in range(20):
                link.isend(1, torch.tensor([i], dtype=torch.uint8)).wait()
            return []
        link.irecv(0, torch.zeros(16, dtype=torch.uint8)).wait()
        time.sleep(0.1)  # all of it has come
        return [int(link.irecv(0, torch.zeros(1, dtype=torch.uint8)).wait()[0]) for _ in range(20)]

    assert run_ranks(2, rank, links=tls(2, 1.0))[1] == list(range(20))


ENDS = [
    ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "EOF occurred in violation of protocol"),
    ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "TLS/SSL connection has been closed (EOF)"),
    ssl.SSLError(ssl.SSL_ERROR_SYSCALL, "[SSL: UNEXPECTED_EOF_WHILE_READING] unexpected eof while reading"),
]


@pytest.mark.parametrize("error", ENDS, ids=lambda each: type(each).__name__)
def test_however_openssl_says_that_a_connection_ended_the_peer_has_closed_its_link(
    error: ssl.SSLError,
) -> None:
    links = tls(2, TIMEOUT_S)
    with (
        patch.object(EncryptedSocket, "read", side_effect=error),
        pytest.raises(LinkError, match="rank 1 receiving from rank 0: rank 0 has closed its link"),
    ):
        links[1].irecv(0, torch.zeros(4, dtype=torch.uint8)).wait()
    for link in links:
        link.close()


def test_a_byte_that_was_altered_on_the_way_is_an_error() -> None:
    with Tap() as tap:
        links = linked(with_tls([{1: tap.low}, {0: tap.high}]), TIMEOUT_S)
        tap.spoils = True
        links[0].isend(1, torch.ones(100, dtype=torch.uint8)).wait()
        with pytest.raises(LinkError, match=rf"(?i)rank 1 receiving from rank 0: .*{SPOILT}"):
            links[1].irecv(0, torch.zeros(100, dtype=torch.uint8)).wait()
        for link in links:
            link.close()


def sums(environment: dict[str, str], spec: str, algorithm: str) -> tuple[torch.Tensor, bool]:
    """Return a sum over all ranks, the third that a line makes, and whether Gloo has summed."""
    group = dist.group.WORLD
    assert group is not None
    with patch.dict(os.environ, environment):
        link = ProcessGroupLink(group, timeout_s=20.0)
    exchange = Exchange(link, Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES))
    for seed in range(3):
        tensor = torch.randn(100_000, generator=torch.Generator().manual_seed(10 * seed + link.rank)) * 0.01
        cost = exchange.all_reduce(tensor, average=False)
    exchange.close()
    return tensor, cost.frames == 1


@pytest.mark.processes
def test_an_all_reduce_has_the_same_bits_as_in_plain_text(run_processes: RunProcesses) -> None:
    plain = run_processes(3, sums, {}, "errbound:2^-10", "ring")
    hidden = run_processes(3, sums, variables(), "errbound:2^-10", "ring")
    for (one, _), (other, _) in zip(plain, hidden, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.processes
def test_a_plan_backend_walks_a_ring_instead_of_gloos_plain_text(run_processes: RunProcesses) -> None:
    assert [by_gloo for _, by_gloo in run_processes(2, sums, {}, "identity", "backend")] == [True, True]
    hidden = run_processes(2, sums, variables(), "identity", "backend")
    assert [by_gloo for _, by_gloo in hidden] == [False, False]
    assert torch.equal(hidden[0][0], hidden[1][0])


def all_reduce_of_the_link(environment: dict[str, str]) -> str:
    group = dist.group.WORLD
    assert group is not None
    with patch.dict(os.environ, {**environment, "GLOO_DEVICE_TRANSPORT": "TCP_TLS"}):
        link = ProcessGroupLink(group, timeout_s=20.0)
    assert not link.HAS_ALL_REDUCE
    with pytest.raises(LinkError) as caught:
        link.all_reduce(torch.ones(10))
    link.close()
    return str(caught.value)


@pytest.mark.processes
def test_gloos_all_reduce_is_refused(run_processes: RunProcesses) -> None:
    said = run_processes(2, all_reduce_of_the_link, variables())
    assert [text.partition(",")[0] for text in said] == ["expected a link without TLS"] * 2
