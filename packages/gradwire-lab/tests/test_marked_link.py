"""Marked links of MPI ranks, where threads stand in for MPI, which has only to tell where rank 0 is."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from gradwire.errors import LinkError, LinkTimeoutError, TensorError
from gradwire.exchange import Exchange
from gradwire.launch.addresses import VARIABLE
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire_lab import collective_comm_comp as marked
from support.certificates import needs_openssl, variables


class Comm:
    """One rank's communicator: what ranks broadcast, and how many have come to the barrier."""

    def __init__(self, rank: int, world: int, shared: SimpleNamespace) -> None:
        self.rank, self.world, self.shared = rank, world, shared

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.world

    def Is_inter(self) -> bool:  # noqa: N802
        return False

    def Ibcast(self, message: list[Any], root: int) -> Any:  # noqa: N802
        memory, _ = message
        if self.rank == root:
            self.shared.said = bytes(memory)

        def is_done() -> bool:
            if self.shared.said is not None:
                memory[:] = self.shared.said
            return self.shared.said is not None

        return SimpleNamespace(Test=is_done)

    def Ibarrier(self) -> Any:  # noqa: N802
        with self.shared.lock:
            self.shared.came += 1
        return SimpleNamespace(Test=lambda: self.shared.came == self.world)


def comms(world: int) -> list[Comm]:
    shared = SimpleNamespace(said=None, came=0, lock=threading.Lock())
    return [Comm(rank, world, shared) for rank in range(world)]


@pytest.fixture(autouse=True)
def _without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked, "load_mpi", lambda: SimpleNamespace(COMM_NULL=None, BYTE=None))
    monkeypatch.setenv(VARIABLE, "lo")


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_ranks_meet_and_their_second_connections_are_marked(world: int) -> None:
    def rank(comm: Comm) -> tuple[Link, list[int], torch.Tensor]:
        link = marked.marked_link(comm, 20.0, 0x40)  # type: ignore[arg-type]
        option = socket.IPPROTO_IP, socket.IP_TOS
        found = [each.socket.getsockopt(*option) for each in link._marked.values()]
        tensor = torch.full((5000,), 1.0 + 2**-12 + link.rank)
        Exchange(link, Plan(offload="truncate:16")).all_reduce(tensor, average=False)
        link.close()
        return link, found, tensor

    with ThreadPoolExecutor(world) as pool:
        results = [each.result(30) for each in [pool.submit(rank, comm) for comm in comms(world)]]
    for place, (link, tos, tensor) in enumerate(results):
        assert (link.rank, link.world, link.tos) == (place, world, 0x40)
        assert tos == [0x40] * (world - 1)
        wanted = world * (world + 1) / 2 if world > 1 else 1.0 + 2**-12
        assert torch.equal(tensor, torch.full((5000,), wanted))


def test_a_rank_that_does_not_come_is_a_timeout() -> None:
    late = comms(2)[1]
    with pytest.raises(LinkTimeoutError, match=r"rank 1 joining the 2 ranks .* incomplete after 0\.1 s"):
        marked.marked_link(late, 0.1)  # type: ignore[arg-type]


def test_another_mark_or_tls_is_refused() -> None:
    with pytest.raises(LinkError, match="tos: expected a type of service from 0x04 to 0xff"):
        marked.marked_link(comms(1)[0], tos=1)  # type: ignore[arg-type]


def test_ranks_whose_plan_needs_marks_close_their_link_without(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[Link] = []

    def marked_link(*words: Any) -> Link:
        links.append(connect(*words))
        return links[-1]

    def connect_unmarked(comm: Comm) -> None:
        marked.CollectiveCommComp(comm, tos=0)  # type: ignore[arg-type]

    connect = marked.marked_link
    monkeypatch.setattr(marked, "marked_link", marked_link)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(connect_unmarked, comm) for comm in comms(2)]:
            with pytest.raises(LinkError, match="expected connections marked for offload inceptionn"):
                each.result(30)
    assert len(links) == 2
    for link in links:
        with pytest.raises(LinkError, match="this rank has closed its link"):
            link.irecv(1 - link.rank, torch.empty(64, dtype=torch.uint8))


@pytest.mark.parametrize(
    "buffer",
    [torch.zeros(3, device="meta"), torch.zeros(3, requires_grad=True), [[1.0], [1.0, 2.0]], None],
    ids=["on another device", "requires grad", "ragged", "none"],
)
def test_what_numpy_cannot_share_is_refused(buffer: Any) -> None:
    with marked.CollectiveCommComp(comms(1)[0]) as comp:  # type: ignore[arg-type]
        refused = pytest.raises(TensorError, match="expected buf as a writeable, contiguous float32 array")
        with refused:
            comp.Bcast(buffer)


@needs_openssl
def test_tls_is_refused() -> None:
    refused = pytest.raises(LinkError, match=r"rank 0 .* because NICs cannot compress with TLS")
    with patch.dict("os.environ", variables()), refused:
        marked.marked_link(comms(1)[0])  # type: ignore[arg-type]
