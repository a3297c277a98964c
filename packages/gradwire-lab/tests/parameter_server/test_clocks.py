from __future__ import annotations

import itertools

import pytest

from gradwire.errors import SpecError
from gradwire_lab.parameter_server.session import Clocks, check_staleness


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_worker_goes_on_while_it_is_at_most_the_staleness_ahead(staleness: int) -> None:
    for counts in itertools.product(range(5), repeat=3):
        clocks = Clocks((1, 2, 3), staleness)
        for rank, count in zip((1, 2, 3), counts, strict=True):
            assert [clocks.tick(rank) for _ in range(count)] == list(range(1, count + 1))
        assert clocks.slowest == min(counts)
        assert clocks.slowest_rank == 1 + counts.index(min(counts))
        assert clocks.level == (len(set(counts)) == 1)
        assert [clocks.may_go_on(rank) for rank in (1, 2, 3)] == [
            n <= min(counts) + staleness for n in counts
        ]


def test_all_clocks_can_be_set() -> None:
    clocks = Clocks((1, 2), 0)
    clocks.tick(2)
    clocks.set_all(7)
    assert clocks.level
    assert (clocks.of(1), clocks.of(2)) == (7, 7)


@pytest.mark.parametrize("staleness", [-1, (1 << 20) + 1, 1.0, True, "2"])
def test_a_staleness_is_a_whole_number(staleness: object) -> None:
    with pytest.raises(SpecError, match="whole number from 0 to 1048576"):
        check_staleness(staleness)  # type: ignore[arg-type]
