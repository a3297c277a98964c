"""Keepalives over a made-up MPI: counted at both ends, and none is sent before the last one has left."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from gradwire.links.mpi import Keepalives

ANY = -1
MPI = SimpleNamespace(ANY_SOURCE=ANY, BYTE="bytes", Status=lambda: _Status())


class _Status:
    source = ANY

    def Get_source(self) -> int:  # noqa: N802 - as MPI calls it
        return self.source


class _Sending:
    """Has left once its message was received."""

    left = False

    def Test(self) -> bool:  # noqa: N802 - as MPI calls it
        return self.left


class Comm:
    """One rank's communicator: messages without content, received in the order of their sending."""

    def __init__(self, rank: int, mail: dict[int, list[tuple[int, _Sending]]]) -> None:
        self._rank, self._mail = rank, mail

    def Get_rank(self) -> int:  # noqa: N802 - as MPI calls it
        return self._rank

    def Get_size(self) -> int:  # noqa: N802 - as MPI calls it
        return len(self._mail)

    def Isend(self, _message: object, peer: int, _tag: int) -> _Sending:  # noqa: N802 - as MPI calls it
        sending = _Sending()
        self._mail[peer].append((self._rank, sending))
        return sending

    def Iprobe(self, _source: int, _tag: int, status: _Status) -> bool:  # noqa: N802 - as MPI calls it
        if self._mail[self._rank]:
            status.source = self._mail[self._rank][0][0]
        return bool(self._mail[self._rank])

    def Recv(self, _message: object, source: int, _tag: int) -> None:  # noqa: N802 - as MPI calls it
        first, sending = self._mail[self._rank].pop(0)
        assert first == source
        sending.left = True


def ranks(world: int) -> list[Keepalives]:
    mail: dict[int, list[tuple[int, _Sending]]] = {rank: [] for rank in range(world)}
    made: Any = [Comm(rank, mail) for rank in range(world)]
    return [Keepalives(MPI, comm) for comm in made]


def test_every_other_rank_gets_one_and_hears_that_somebody_is_alive() -> None:
    first, second, third = ranks(3)
    first.send()
    assert first.sent.tolist() == [0, 1, 1]
    for other in (second, third):
        assert other.activity.heard_at < 0
        other.receive()
        assert other.received.tolist() == [1, 0, 0]
        assert other.activity.heard_at > 0
        assert other.activity.moved_at < 0, "no frame of its own moved"


def test_a_rank_that_does_not_listen_has_one_on_its_way_and_no_more() -> None:
    first, second, _ = ranks(3)
    for _ in range(4):
        first.send()
        second.receive()
    assert first.sent.tolist() == [0, 4, 1]
    assert (first.is_leaving(1), first.is_leaving(2)) == (False, True)
    assert second.received.tolist() == [4, 0, 0]


def test_in_the_end_as_many_have_come_as_were_sent() -> None:
    all_ranks, came = ranks(4), Counter[int]()
    for turn in range(20):
        all_ranks[turn % 4].send()
        all_ranks[(turn * 7 + 3) % 4].receive()
    for rank in all_ranks:
        rank.receive()
    for number, rank in enumerate(all_ranks):
        came[number] = sum(int(other.sent[number]) for other in all_ranks)
        assert rank.received.tolist() == [int(other.sent[number]) for other in all_ranks]
    assert min(came.values()) > 0
