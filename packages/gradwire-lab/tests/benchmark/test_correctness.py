"""A benchmark of wrong sums is worth nothing: right ones pass, wrong ones do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import TABLE, parse
from gradwire.collectives import TABLE as ALGORITHMS
from gradwire.costs import ExchangeCost
from gradwire.errors import JobError
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire_lab.benchmark.allreduce import TORCH, Checked, Configuration, allowed_error, check_all_reduce
from gradwire_lab.benchmark.data import Data, DataSpec

RunRanks = Callable[..., list[Any]]
Meetings = Callable[[int], Any]
COUNT = 10_007
HEADER_NBYTES = 32


def check(
    run_ranks: RunRanks,
    make_meeting: Meetings,
    world: int,
    configuration: Configuration,
    spoil: Callable[[torch.Tensor, int], object] = lambda _bucket, _rank: None,
    data: str = "laplace",
) -> list[Checked]:
    meeting = make_meeting(world)
    numbers = Data(DataSpec.parse(data), COUNT)

    def run(link: Link) -> Checked:
        exchange = Exchange(link, configuration.plan)

        def all_reduce(bucket: torch.Tensor) -> ExchangeCost:
            accounting = exchange.all_reduce(bucket, average=False)
            spoil(bucket, link.rank)
            return accounting

        return check_all_reduce(all_reduce, configuration, numbers, link.rank, world, meeting.at(link.rank))

    return run_ranks(world, run)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_algorithm_is_right(
    run_ranks: RunRanks, make_meeting: Meetings, algorithm: str, world: int
) -> None:
    configuration = Configuration(algorithm, "errbound:2^-10", 4 * COUNT, 1 << 14)
    checked = check(run_ranks, make_meeting, world, configuration)
    assert all(it == checked[0] for it in checked), "all ranks know the same"
    assert 0 < checked[0].largest_error <= checked[0].allowed_error
    assert world * 2**-10 <= checked[0].allowed_error < 1.01 * world * 2**-10


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("data", ["laplace", "normal"])
def test_every_codec_is_right(run_ranks: RunRanks, make_meeting: Meetings, row: Any, data: str) -> None:
    for spec in row.codec.EXAMPLES:
        configuration = Configuration("ring", str(parse(spec)), 4 * COUNT, 1 << 14)
        checked = check(run_ranks, make_meeting, 3, configuration, data=data)[0]
        assert checked.largest_error <= checked.allowed_error


def test_bytes_are_those_of_the_schedule(run_ranks: RunRanks, make_meeting: Meetings) -> None:
    checked = check(run_ranks, make_meeting, 2, Configuration("ring", "identity", 4 * COUNT))[0]
    assert sum(checked.wire_nbytes) == 2 * 4 * COUNT + 4 * HEADER_NBYTES, "half a bucket, twice, from each"
    assert checked.ratio == pytest.approx(1, rel=1e-2)
    assert checked.ratio < 1
    assert checked.largest_error <= checked.allowed_error < 1e-6


def test_a_wrong_sum_is_not_measured(run_ranks: RunRanks, make_meeting: Meetings) -> None:
    with pytest.raises(
        JobError, match=r"ring identity .*: expected an error of at most .* on 2 ranks, got 0\.01"
    ):
        check(
            run_ranks,
            make_meeting,
            2,
            Configuration("ring", "identity", 4 * COUNT),
            spoil=lambda bucket, _: bucket[5].add_(0.01),
        )


def test_different_bits_are_not_measured(run_ranks: RunRanks, make_meeting: Meetings) -> None:
    with pytest.raises(JobError, match="bit-identical results on all ranks, but rank 1 differs from rank 0"):
        check(
            run_ranks,
            make_meeting,
            2,
            Configuration("ring", "errbound:2^-10", 4 * COUNT),
            spoil=lambda bucket, rank: bucket[5].add_(1e-6 * rank),
        )


def test_torchs_sum_may_be_off_by_its_rounding_only() -> None:
    data = Data(DataSpec.parse("normal"), COUNT)
    allowed = allowed_error(Configuration(TORCH, "identity", 4 * COUNT), data, 4)
    total = sum((data.bucket(rank, COUNT) for rank in range(4)), torch.zeros(COUNT))
    rounding = (total.double() - data.exact_sum(4, COUNT)).abs().max().item()
    assert rounding < allowed < 1e-4
