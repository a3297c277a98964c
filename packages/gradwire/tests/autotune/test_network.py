from __future__ import annotations

import pytest

from gradwire import Link
from gradwire.autotune.costs import LINE_FIELDS, line_of, own_line
from gradwire.errors import ExchangeError
from support.ranks import run_ranks


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_measure_and_the_leaders_know(world: int) -> None:
    def run(link: Link) -> tuple[float, ...]:
        return own_line(link)

    rows = run_ranks(world, run)
    assert [any(row) for row in rows] == [True] * (world - 1) + [False], "the last rank leads nobody"
    assert all(len(row) == LINE_FIELDS for row in rows)
    assert line_of(rows).nbytes_per_s == min(row[1] for row in rows if any(row))


def test_the_slowest_line_counts() -> None:
    line = line_of([(1e-3, 1e9, 1e5, 0.9), (0.0,) * 4, (2e-3, 1e8, 2e5, 0.8)])
    assert (line.latency_s, line.nbytes_per_s, line.burst_nbytes, line.duplex_share) == (2e-3, 1e8, 1e5, 0.8)


def test_a_peer_that_is_gone_is_an_error_of_the_exchange() -> None:
    def run(link: Link) -> None:
        if link.rank == 0:
            own_line(link)
        link.close()

    failure, _ = run_ranks(2, run, errors="return")
    assert isinstance(failure, ExchangeError)
    assert str(failure).startswith("a measurement of the network failed: rank 0 ")
