from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire_lab.benchmark.allreduce import TORCH, Configuration, Timing, slowest, time_calls

RunRanks = Callable[..., list[Any]]


def test_every_iteration_begins_at_a_barrier_with_the_same_numbers(
    run_ranks: RunRanks, make_meeting: Callable[[int], Any]
) -> None:
    meeting = make_meeting(3)

    def run(link: Link) -> tuple[list[float], torch.Tensor]:
        tensor = torch.full((100,), float(link.rank + 1))
        exchange = Exchange(link, Plan(parse("quantize:8")))
        all_reduce = partial(exchange.all_reduce, average=False)
        return time_calls(all_reduce, tensor, 4, 2, meeting.barrier), tensor

    for rank, (seconds, tensor) in enumerate(run_ranks(3, run)):
        assert len(seconds) == 4, "warm-up is not counted"
        assert min(seconds) > 0
        assert torch.equal(tensor, torch.full((100,), float(rank + 1))), "sums of sums would grow"
    assert meeting.barriers == 6


def test_an_all_reduce_gets_the_numbers_anew_each_time() -> None:
    seen: list[float] = []

    def all_reduce(bucket: torch.Tensor) -> None:
        seen.append(bucket[0].item())
        bucket.mul_(2)

    assert len(time_calls(all_reduce, torch.ones(3), 5, 1, lambda: None)) == 5
    assert seen == [1.0] * 6


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    others = [[0.1, 0.5, 0.2], [0.3, 0.1, 0.1]]
    timing = slowest([0.2, 0.2, 0.2], lambda own: torch.stack([torch.tensor(others[0]).double(), own]))
    assert timing.seconds == pytest.approx((0.2, 0.5, 0.2))


def test_percentiles_are_those_of_the_iterations() -> None:
    timing = Timing(tuple(number / 100 for number in range(101)))
    assert (timing.p50_s, timing.p99_s) == pytest.approx((0.5, 0.99))


def test_a_configuration_is_a_plan_unless_it_is_torchs() -> None:
    configuration = Configuration("ring", "errbound:2^-10", 4 << 20, 1 << 20)
    assert configuration.plan == Plan(parse("errbound:2^-10"), "ring", 1 << 20)
    assert configuration.count == 1 << 20
    assert str(configuration) == "ring errbound:2^-10 4MiB"
    assert str(Configuration(TORCH, "identity", 1000)) == "torch 1kB"
    with pytest.raises(SpecError, match="unknown algorithm 'torch'"):
        _ = Configuration(TORCH, "identity", 1000).plan
