"""Ranks for the doctor's tests: cards of ranks that are well, and whole visits of ranks that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.doctor.finding import Card, Diagnosis, Finding
from gradwire.doctor.ranks import Words, follow, lead
from gradwire.links import Link, loopback

WELL = Card(
    gradwire="1.2.3",
    python="3.12.1",
    torch="2.7.0+cpu",
    wire_version=1,
    target="avx2",
    kernels_digest="0123456789abcdef",
    machine_id="a",
    addresses=("10.0.0.1",),
    loopback=False,
    plan="",
    findings=(Finding("Python", "ok", "3.12.1"),),
)

Consult = Callable[..., tuple[Diagnosis, list[Any]]]


@pytest.fixture
def make_cards() -> Callable[..., list[Card]]:
    """Return ``make_cards(world, {rank: {field: value}})``: ranks that are well but for what is told."""

    def make(world: int, others: Mapping[int, Mapping[str, Any]] | None = None) -> list[Card]:
        return [replace(WELL, **(others or {}).get(rank, {})) for rank in range(world)]

    return make


@pytest.fixture
def consult() -> Consult:
    """Return ``consult(cards, links=None, absent=(), timeout_s=10, lines=False)``.

    It lets the ranks with these cards visit the doctor, as threads that share a store, and returns rank 0's
    report and what each other rank returned or raised.
    """
    return _consult


def _consult(
    cards: Sequence[Card],
    links: Sequence[Link] | None = None,
    absent: Sequence[int] = (),
    timeout_s: float = 10.0,
    lines: bool = False,
) -> tuple[Diagnosis, list[Any]]:
    store, world = HashStore(), len(cards)
    ends = list(loopback(world, timeout_s) if links is None else links)
    outcomes: list[Any] = [None] * world

    @contextmanager
    def connected(rank: int) -> Iterator[Link]:
        try:
            yield ends[rank]
        finally:
            ends[rank].close()

    def be(rank: int) -> None:
        words, connect = Words(store), lambda: connected(rank)
        try:
            if rank == 0:
                outcomes[0] = lead(words, cards[0], world, connect, timeout_s, lines=lines)
            else:
                outcomes[rank] = follow(words, cards[rank], rank, connect, timeout_s)
        except BaseException as error:
            outcomes[rank] = error

    threads = [
        threading.Thread(target=be, args=(rank,), daemon=True, name=f"rank {rank}")
        for rank in range(world)
        if rank not in absent
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), f"{thread.name} hangs"
    assert isinstance(outcomes[0], Diagnosis), outcomes[0]
    return outcomes[0], outcomes[1:]
