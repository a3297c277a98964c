"""Gloo's all-reduce among threads of one process, which share torch's store for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.gloo import GlooAllReduce, _translated

NAMES = ("rank 4", "rank 7", "rank 9")


def run_all(world: int, body: Callable[[GlooAllReduce, int], Any]) -> list[Any]:
    """Return what every rank returns or raises, a thread each."""
    store, found = HashStore(), list[Any]([None] * world)
    members = [GlooAllReduce(store, rank, NAMES[:world], connect_s=30.0, gone=list) for rank in range(world)]

    def work(rank: int) -> None:
        try:
            found[rank] = body(members[rank], rank)
        except LinkError as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    for member in members:
        member.close()
    return found


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_have_the_sum_as_often_as_they_like(world: int) -> None:
    def body(gloo: GlooAllReduce, rank: int) -> list[list[float]]:
        found = []
        for step in range(3):
            tensor = torch.full((5,), float(rank + 1)) * 10**step
            gloo.sum(tensor, 20.0)
            found.append(tensor.tolist())
        return found

    total = world * (world + 1) / 2
    assert run_all(world, body) == [[[total * 10**step] * 5 for step in range(3)]] * world


def test_a_rank_that_does_not_come_is_a_timeout_of_those_who_did() -> None:
    def body(gloo: GlooAllReduce, rank: int) -> None:
        if rank != 1:
            gloo.sum(torch.ones(3), 0.2)

    first, absent, last = run_all(3, body)
    assert absent is None
    for rank, error in ((0, first), (2, last)):
        assert isinstance(error, LinkTimeoutError)
        doing = f"{NAMES[rank]} in Gloo's all-reduce of 3 values over 3 ranks"
        assert str(error).startswith(f"{doing}: not all ranks joined: no progress within 0.2 s; check")


def test_a_rank_that_is_gone_before_it_connects_is_named_at_once() -> None:
    def body(gloo: GlooAllReduce, rank: int) -> float:
        started, gloo.gone = time.monotonic(), lambda: [1]
        if rank == 0:
            with pytest.raises(LinkError, match="over 2 ranks: rank 7 has closed its link"):
                gloo.sum(torch.ones(3), 30.0)
        return time.monotonic() - started

    assert run_all(2, body)[0] < 5.0


@pytest.mark.parametrize("connected", [False, True])
def test_closing_ends_a_wait_for_a_peer(connected: bool) -> None:
    def body(gloo: GlooAllReduce, rank: int) -> float:
        if connected:
            gloo.sum(torch.ones(3), 20.0)
        if rank == 1:
            return 0.0
        closing = threading.Timer(0.05, gloo.close)
        closing.start()
        started = time.monotonic()
        with pytest.raises(
            LinkError, match=r"^rank 4 in Gloo.* of 3 values .*: this rank has closed its link$"
        ):
            gloo.sum(torch.ones(3), 30.0)
        closing.join()
        return time.monotonic() - started

    assert run_all(2, body)[0] < 5.0


def test_a_closed_end_sums_no_more_although_the_keys_of_its_connection_are_set() -> None:
    here = threading.Barrier(2)

    def body(gloo: GlooAllReduce, _rank: int) -> float:
        gloo.sum(torch.ones(3), 20.0)
        here.wait(20.0)
        gloo.close()
        started = time.monotonic()
        with pytest.raises(LinkError, match=r"over 2 ranks: this rank has closed its link$"):
            gloo.sum(torch.ones(3), 20.0)
        return time.monotonic() - started

    assert max(run_all(2, body)) < 3.0, "Gloo waits 6 s for peers that do not listen"


def test_a_peer_that_stands_still_is_a_timeout() -> None:
    def body(gloo: GlooAllReduce, rank: int) -> None:
        gloo.sum(torch.ones(3), 20.0)
        if rank == 0:
            gloo.sum(torch.ones(3), 0.2)

    error, _ = run_all(2, body)
    assert isinstance(error, LinkTimeoutError)
    assert "rank 4 in Gloo's all-reduce of 3 values over 2 ranks: no progress within 0.2 s" in str(error)


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        (
            "[/gloo/pair.cc:144] Timed out waiting 200ms. More.",
            LinkTimeoutError,
            "no progress within 2 s; check that all ranks run, or use a longer timeout_s",
        ),
        ("[/gloo/pair.cc:9] Connection closed by peer. Hint", LinkError, "Connection closed by peer"),
        (
            "Socket Timeout",
            LinkTimeoutError,
            "no progress within 2 s; check that all ranks run, or use a longer timeout_s",
        ),
        ("something else", LinkError, "something else"),
    ],
)
def test_texts_of_gloo_become_errors_of_links(text: str, kind: type[LinkError], wanted: str) -> None:
    error = _translated(RuntimeError(text), "rank 4 here", 2.0)
    assert type(error) is kind
    assert str(error) == f"rank 4 here: {wanted}"


def test_several_are_under_way_once_a_first_one_has_connected() -> None:
    def body(gloo: GlooAllReduce, rank: int) -> tuple[list[bool], list[list[float]]]:
        seen = [gloo.is_connected]
        gloo.sum(torch.ones(1), 20.0)
        seen.append(gloo.is_connected)
        tensors = [torch.full((4,), float(rank + step)) for step in range(5)]
        under_way = [gloo.begin(each, 20.0) for each in tensors]
        for each in reversed(under_way):
            each.wait()
        assert all(each.is_over for each in under_way)
        return seen, [each.tolist() for each in tensors]

    for seen, found in run_all(3, body):
        assert seen == [False, True]
        assert found == [[3.0 * step + 3] * 4 for step in range(5)]


def test_a_wait_ends_at_its_limit_or_some_time_after_a_peer_has_gone() -> None:
    here, left = threading.Barrier(2), threading.Event()

    def body(gloo: GlooAllReduce, rank: int) -> list[str]:
        gloo.connect_s = 0.2
        gloo.sum(torch.ones(1), 20.0)
        here.wait()
        if rank == 1:  # it doesn't come to the next one
            left.wait(20.0)
            return []
        told, reduction, gloo.gone = [], gloo.begin(torch.ones(3), 60.0), lambda: [1]
        with pytest.raises(LinkError) as gone:
            reduction.wait()
        told.append(str(gone.value))
        gloo.gone = list
        with pytest.raises(LinkTimeoutError) as late:
            gloo.begin(torch.ones(5), 60.0).wait(0.1)
        told.append(str(late.value))
        gloo.close()  # which does not wait for the peer
        with pytest.raises(LinkError, match="this rank has closed its link"):
            gloo.begin(torch.ones(3), 60.0)
        left.set()
        return told

    doing = "rank 4 in Gloo's all-reduce of {} values over 2 ranks"
    assert run_all(2, body)[0] == [
        f"{doing.format(3)} (rank 7 has closed its link): the sum is incomplete",
        f"{doing.format(5)}: the sum is incomplete after 0.1 s; check that all ranks run, or use a longer "
        "timeout_s",
    ]
