"""The ranks of one attempt know each other, whatever the store still holds of those before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError
from gradwire.links.rendezvous.attempt import AbsentError, GroupAttempt, shared_token
from support.endpoints import names


def tokens_of(
    store: HashStore,
    attempts: dict[int, GroupAttempt],
    world: int,
    late: Sequence[int] = (),
    timeout_s: float = 10,
) -> list[str]:
    """Let these ranks come, some of them later; return the token of each."""

    def one(rank: int) -> str:
        if rank in late:
            time.sleep(0.2)
        return shared_token(attempts[rank], store, rank, names(world), f"rank {rank} trying", timeout_s)

    with ThreadPoolExecutor(len(attempts)) as pool:
        return list(pool.map(one, attempts))


def fresh(*ranks: int) -> dict[int, GroupAttempt]:
    return {rank: GroupAttempt() for rank in ranks}


@pytest.mark.parametrize("world", [1, 2, 3, 9])
def test_all_ranks_of_an_attempt_share_a_token(world: int) -> None:
    attempts = fresh(*range(world))
    assert tokens_of(HashStore(), attempts, world) == [attempts[0].own] * world


@pytest.mark.parametrize("late", [[], [0], [1], [0, 2], [1, 2]])
def test_in_the_store_of_a_dead_attempt_the_next_has_another_token(late: list[int]) -> None:
    store = HashStore()
    first = tokens_of(store, fresh(0, 1, 2), 3)
    second = tokens_of(store, fresh(0, 1, 2), 3, late)
    assert len(set(second)) == 1
    assert second[0] not in first


def test_an_attempt_that_died_half_way_does_not_disturb() -> None:
    store = HashStore()
    with pytest.raises(AbsentError):
        tokens_of(store, fresh(1, 2), 3, timeout_s=0.1)
    with pytest.raises(AbsentError):
        tokens_of(store, fresh(0, 1), 3, timeout_s=0.1)
    assert len(set(tokens_of(store, fresh(0, 1, 2), 3))) == 1


def test_who_has_met_needs_nobody_to_meet_again() -> None:
    store, attempts = HashStore(), fresh(0, 1)
    met = tokens_of(store, attempts, 2)
    assert tokens_of(HashStore(), {1: attempts[1]}, 2) == [met[0]]


@pytest.mark.parametrize(
    ("present", "absent"), [((0, 1), [2]), ((1, 2), [0]), ((0,), [1, 2]), ((2,), [0, 1]), ((0, 2), [1])]
)
def test_who_does_not_come_is_named(present: tuple[int, ...], absent: list[int]) -> None:
    with pytest.raises(AbsentError) as caught:
        tokens_of(HashStore(), fresh(*present), 3, timeout_s=0.3)
    assert caught.value.ranks == absent
    names = " and ".join(f"rank {rank}" for rank in absent)
    assert str(caught.value) == (
        f"rank {present[0]} trying ({names} did not join): no progress within 0.3 s; check that all ranks "
        "run, or use a longer timeout_s"
    )


def failures_of(attempts: dict[int, GroupAttempt], store: HashStore | None = None) -> list[str]:
    """Let these ranks come; return what each of them says of it."""
    shared = HashStore() if store is None else store

    def one(rank: int) -> str:
        with pytest.raises(LinkError) as caught:
            shared_token(attempts[rank], shared, rank, names(len(attempts)), f"rank {rank} trying", 10)
        return str(caught.value)

    with ThreadPoolExecutor(len(attempts)) as pool:
        return list(pool.map(one, attempts))


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_two_versions_are_one_sentence_on_every_rank_at_once(odd: int) -> None:
    attempts = {rank: GroupAttempt(version="0.2.0" if rank == odd else "0.1.0") for rank in range(3)}
    started = time.monotonic()
    told = failures_of(attempts)
    assert time.monotonic() - started < 4
    others = ", ".join(f"rank {rank}" for rank in range(3) if rank != odd)
    runs = ["0.2.0 on rank 0", f"0.1.0 on {others}"]
    found = " and ".join(runs if odd == 0 else [f"0.1.0 on {others}", f"0.2.0 on rank {odd}"])
    assert told == [
        f"rank {rank} trying: expected the same version of gradwire on all ranks, got {found}; "
        "install the same version on all ranks"
        for rank in range(3)
    ]
    assert all(attempt.shared is None for attempt in attempts.values())


def test_a_rank_that_tells_no_version_is_called_older() -> None:
    store, attempts = HashStore(), fresh(0, 1)
    attempts[1].version = ""
    told = failures_of(attempts, store)
    assert all("an older version on rank 1" in each for each in told)
