"""DDP's own steps, against a step computed by hand and against the planner's uncompressed plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradwire.planner.baselines import BUCKET_NBYTES, PLAIN, Baselines, cast_s, in_bf16
from gradwire.planner.candidates import Workload
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import Predictor
from gradwire.timing.environment import Environment

Make = Callable[..., Environment]
LARGE = Workload.of_count(4_000_000, forward_s=0.01)


def test_plain_ddp_is_the_transports_all_reduce_in_ddps_buckets(environment: Make) -> None:
    place = environment(12.5e6)
    found = Baselines(LARGE, place).plain_s(4)
    assert found == Predictor(LARGE, 4, Family(place)).predict(PLAIN).step_s
    assert BUCKET_NBYTES == 25 * 2**20  # bucket_cap_mb's default


@pytest.mark.parametrize("hosts", [2, 4])
def test_on_a_slow_link_the_hook_takes_the_time_of_half_of_the_bytes(environment: Make, hosts: int) -> None:
    rate = 12.5e6
    found = Baselines(LARGE, environment(rate))
    sent_s = 2 * (hosts - 1) / hosts * LARGE.nbytes / rate
    assert found.plain_s(hosts) == pytest.approx(0.01 + sent_s, rel=0.05)
    assert found.hook_s(hosts) == pytest.approx(0.01 + sent_s / 2, rel=0.05)


def test_rounding_costs_what_the_codec_does_or_a_copy_if_it_was_not_measured(environment: Make) -> None:
    place = environment()
    assert cast_s(place, 1000) == pytest.approx(1000 * 2e-9)
    others = {spec: cost for spec, cost in place.codecs.items() if spec != "bf16"}
    assert cast_s(replace(place, codecs=others), 1000) == pytest.approx(1000 * 2e-9)


def test_on_a_link_that_is_no_limit_the_hook_gains_nothing(environment: Make) -> None:
    found = Baselines(LARGE, environment(1e12, 0.0))
    assert found.hook_s(4) >= found.plain_s(4)


def test_only_uncompressed_values_become_shorter(environment: Make) -> None:
    place = environment()
    halved = in_bf16(place)
    assert [point.nbytes for point in halved.cost("identity").points] == [2.0]
    assert halved.cost("quantize:8") == place.cost("quantize:8")
