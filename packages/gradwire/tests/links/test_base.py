"""What a link is for those that stand on top of another one."""

from __future__ import annotations

import pytest
import torch

from gradwire.links import loopback
from gradwire.links.base import Link, Receiving, Sending, Wrapper


class Through(Wrapper):
    """Changes nothing."""

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return self._inner.irecv(source, buffer)


class Noting(Through):
    """Names its ranks, and notes who keeps it alive and closes it."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.calls: list[object] = []

    def keep_alive(self, timeout_s: float) -> None:
        self.calls.append(timeout_s)

    def close(self) -> None:
        self.calls.append("close")
        super().close()

    def name_of(self, rank: int) -> str:
        return f"rank {rank} at home"


def test_a_wrapper_passes_on_what_it_does_not_change() -> None:
    inner = Noting(loopback(3, timeout_s=7.0)[2])
    link = Through(inner)
    assert (link.rank, link.world, link.timeout_s) == (2, 3, 7.0)
    assert link.name_of(1) == "rank 1 at home"
    link.keep_alive(2.5)
    link.close()
    assert inner.calls == [2.5, "close"]


def test_a_link_calls_ranks_by_their_numbers() -> None:
    assert loopback(2)[0].name_of(1) == "rank 1"


def test_without_an_all_reduce_of_its_own_it_says_so() -> None:
    link = Through(loopback(1)[0])
    assert not link.HAS_ALL_REDUCE
    with pytest.raises(
        NotImplementedError, match=r"^Through has no native all-reduce; use algorithm='ring'$"
    ):
        link.all_reduce(torch.ones(2))


def test_a_link_without_its_four_methods_cannot_be_made() -> None:
    class Half(Link):
        def close(self) -> None: ...

    with pytest.raises(TypeError, match=r"irecv.*isend.*keep_alive"):
        Half()  # type: ignore[abstract]
