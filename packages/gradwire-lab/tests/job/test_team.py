"""Who belongs to which run, in a world of which this process alone is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire_lab.job.options import JobOptions, parse_runs
from gradwire_lab.job.train_loop import Team

WORLD = 4
SERVER, RING = parse_runs("server:fp8,sync")


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[[int], Team]]:
    """``join(rank)`` gives this process's team of 3 workers and a server; nobody answers collectives."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers the backend

    store = HashStore()

    def be(rank: int) -> Team:
        dist.init_process_group("fake", store=store, rank=rank, world_size=WORLD)
        return Team(store, rank, JobOptions((SERVER, RING), tmp_path, workers=WORLD - 1))

    yield be
    dist.destroy_process_group()


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_server_is_the_last_rank_and_the_first_of_its_link(rank: int, join: Callable[[int], Team]) -> None:
    team = join(rank)
    assert team.is_server == (rank == 3)
    group, order = team.link_group(SERVER)
    assert order == [3, 0, 1, 2]
    assert dist.get_process_group_ranks(group) == [0, 1, 2, 3]
    assert team.takes_part(SERVER)


def test_workers_train_without_the_server_where_a_run_has_none(join: Callable[[int], Team]) -> None:
    team = join(1)
    group, order = team.link_group(RING)
    assert order == dist.get_process_group_ranks(group) == [0, 1, 2]
    assert team.takes_part(RING)


def test_the_server_idles_until_it_is_called(join: Callable[[int], Team]) -> None:
    team = join(3)
    assert not team.takes_part(RING)
    waiting = threading.Thread(target=team.wait_for, args=(str(RING),))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    team.announce(str(SERVER))
    waiting.join(0.05)
    assert waiting.is_alive(), "that was another run"
    team.announce(str(RING))
    waiting.join(10)
    assert not waiting.is_alive()
