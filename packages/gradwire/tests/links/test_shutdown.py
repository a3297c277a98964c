"""The end of a link over MPI, against a communicator by hand: what is sent, awaited, and freed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.links import mpi as shutdown
from gradwire.links.mpi import FIN, ClosedLink, Keepalives, free_communicators

WORLD = 3
MPI: Any = SimpleNamespace(INT64_T="int64", BYTE="byte", ANY_SOURCE=-1)


class Request:
    """A message that leaves when the test says so."""

    done = False

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        return self.done


class Comm:
    """Rank 0 of three; the messages of the others are the test's."""

    def __init__(self) -> None:
        self.sent: dict[int, list[int]] = {}
        self.requests: list[Request] = []
        self.fins: dict[int, tuple[int, int]] = {}
        self.freed = 0

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Get_size(self) -> int:  # noqa: N802
        return WORLD

    def Isend(self, message: list[Any], peer: int, tag: int) -> Request:  # noqa: N802
        assert tag == FIN
        self.sent[peer] = message[0].tolist()
        self.requests.append(Request())
        return self.requests[-1]

    def Iprobe(self, peer: int, tag: int, status: object = None) -> bool:  # noqa: ARG002, N802
        return tag == FIN and peer in self.fins

    def Recv(self, message: list[Any], peer: int, tag: int) -> None:  # noqa: N802
        assert tag == FIN
        message[0][:] = self.fins.pop(peer)

    def Free(self) -> None:  # noqa: N802
        self.freed += 1


def new_comm() -> Any:
    return Comm()


class Parting:
    """A link of rank 0 that has sent 2 and 3 frames, and got 5 and 7, when it is closed."""

    def __init__(self, *under_way: Request) -> None:
        self.comm = new_comm()
        MPI.Status = SimpleNamespace
        sent, received = np.array([0, 2, 3]), np.array([0, 5, 7])
        pairs: Any = [(request, torch.empty(1)) for request in under_way]
        self.link = ClosedLink(MPI, self.comm, pairs, sent, received, Keepalives(MPI, self.comm))

    def others_close(self, first: int = 5, second: int = 7) -> None:
        """Let the peers say how many frames they have sent."""
        self.comm.fins = {1: (first, 0), 2: (second, 0)}

    def messages_leave(self) -> None:
        for request in self.comm.requests:
            request.done = True


def test_every_peer_is_told_how_many_frames_went_to_it() -> None:
    assert Parting().comm.sent == {1: [2, 0], 2: [3, 0]}


def test_a_communicator_is_freed_once_all_have_closed_and_nothing_is_left() -> None:
    parting = Parting()
    assert not parting.link.is_settled()
    parting.others_close()
    assert not parting.link.is_settled(), "its own last messages are under way"
    parting.messages_leave()
    assert parting.link.is_settled()
    assert parting.comm.freed == 1


@pytest.mark.parametrize("counts", [(6, 7), (5, 8)])
def test_one_that_holds_a_frame_nobody_took_is_kept(counts: tuple[int, int]) -> None:
    parting = Parting()
    parting.others_close(*counts)
    parting.messages_leave()
    assert parting.link.is_settled()
    assert parting.comm.freed == 0


def test_so_is_one_with_a_request_that_nobody_waits_for() -> None:
    request = Request()
    parting = Parting(request)
    parting.others_close()
    parting.messages_leave()
    assert not parting.link.is_settled()
    request.done = True
    assert parting.link.is_settled()
    assert parting.comm.freed == 0


def test_settled_links_are_forgotten_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    settled, waiting = Parting(), Parting()
    settled.others_close()
    settled.messages_leave()
    monkeypatch.setattr(shutdown, "closing", [settled.link, waiting.link])
    free_communicators()
    assert shutdown.closing == [waiting.link]


def test_a_peer_that_cannot_be_told_is_no_error() -> None:
    def refuse(*_: object) -> Request:
        raise RuntimeError("no such rank")

    none: Any = np.zeros(WORLD, dtype=np.int64)
    broken = new_comm()
    broken.Isend = refuse
    assert not ClosedLink(MPI, broken, [], none, none, Keepalives(MPI, broken)).is_settled()


def test_the_peers_after_one_that_cannot_be_told_are_told() -> None:
    class Partly(Comm):
        def Isend(self, message: list[Any], peer: int, tag: int) -> Request:  # noqa: N802
            if peer == 1:
                raise RuntimeError("no memory")
            return super().Isend(message, peer, tag)

    none: Any = np.zeros(WORLD, dtype=np.int64)
    comm: Any = Partly()
    ClosedLink(MPI, comm, [], none, none, Keepalives(MPI, comm))
    assert list(comm.sent) == [2]
