from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

from gradwire import Exchange, Link, Plan, loopback
from gradwire.autotune import recorder as module
from gradwire.autotune.estimate import Estimate
from gradwire.autotune.recorder import Recorder
from gradwire.autotune.settings import DEFAULT
from gradwire.errors import DataError, SpecError
from gradwire.exchange.request import BucketRequest
from gradwire.sync.bucket.observe import StepCost
from gradwire.sync.context import SyncContext
from support.ranks import run_ranks
from support.sums import bits

LEAST_STEPS = DEFAULT.estimate_steps
COUNTS = (600, 40)
T = TypeVar("T")


class Between:
    """What ``GradientSync`` is between two steps."""

    def __init__(self, exchange: Exchange) -> None:
        self.context = SyncContext(exchange)

    def exchange_now(self, what: str, call: Callable[[Exchange], T]) -> T:
        assert what == "an estimate"
        return call(self.context.exchange)

    def connect_lanes(self, number: int) -> str:
        raise AssertionError(number)


def bucket(recorder: Recorder, exchange: Exchange, values: torch.Tensor) -> None:
    work: Any = SimpleNamespace(tensor=values, is_bypassed=False)
    observer = recorder.bucket(work)
    assert observer.wants_alone
    observer.before(values)
    exchange.run(values, BucketRequest())
    observer.after(values, exchange)


def step(recorder: Recorder, exchange: Exchange, number: int, counts: tuple[int, ...] = COUNTS) -> list[int]:
    """Average buckets as the communication thread does; return the bits of the averages."""
    averages = []
    for count in counts:
        seed = 100 * number + exchange.link.rank
        values = 1.0 + torch.randn(count, generator=torch.Generator().manual_seed(seed))
        bucket(recorder, exchange, values)
        averages += bits(values).tolist()
    recorder.end(StepCost(number))
    return averages


def test_recorded_steps_have_the_bits_of_others_and_make_an_estimate() -> None:
    def run(link: Link) -> tuple[list[Estimate | None], bool]:
        exchange, recorder = Exchange(link, Plan.of("fp8")), Recorder("DDP")
        sync = Between(exchange)
        found, same = [recorder.estimate(sync, "1gbit", 4)], True
        for number in range(LEAST_STEPS + 2):
            is_ready = recorder.is_ready
            same = same and step(recorder, exchange, number) == step(Recorder("DDP"), exchange, number)
            assert is_ready == (number > LEAST_STEPS)
        found.append(recorder.estimate(sync, "1mbit", 4))
        found.append(recorder.estimate(sync))
        return found, same

    results = run_ranks(2, run)
    assert [same for _, same in results] == [True, True]
    assert results[0][0] == results[1][0], "rank 0's counts"
    nothing, told, here = results[0][0]
    assert nothing is None
    assert told is not None
    assert here is not None
    assert (told.network, told.hosts, told.kind) == ("1mbit", 4, "DDP")
    assert (here.network, here.hosts) == ("this one", 2)
    assert told.plain_s > here.plain_s


def test_buckets_that_are_cut_anew_begin_anew() -> None:
    def run(link: Link) -> list[int]:
        exchange, recorder = Exchange(link, Plan()), Recorder("DDP")
        for number, counts in enumerate([COUNTS, COUNTS, (320, 320), (320, 320), (640,)]):
            step(recorder, exchange, number, counts)
        return [each.numel() for each in recorder.recorded.gradients]

    assert run_ranks(2, run) == [[640, 640]] * 2


def test_where_rank_0_cannot_measure_all_ranks_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DataError("there is no room")

    monkeypatch.setattr(module, "estimator", refuse)

    def run(link: Link) -> None:
        exchange, recorder = Exchange(link, Plan()), Recorder("DDP")
        for number in range(LEAST_STEPS + 2):
            step(recorder, exchange, number)
        with pytest.raises(DataError, match="no estimate: there is no room"):
            recorder.estimate(Between(exchange), "1gbit")

    run_ranks(2, run)


def test_a_bucket_that_no_codec_takes_is_not_recorded() -> None:
    recorder = Recorder("DDP")
    work: Any = SimpleNamespace(tensor=torch.ones(3, dtype=torch.float64), is_bypassed=True)
    assert not recorder.bucket(work).wants_alone
    recorder.end(StepCost(1))
    assert recorder.recorded.counts == ()


@pytest.mark.parametrize(
    ("rate", "hosts", "sentence"),
    [
        ("fast", None, "expected a rate such as"),
        ([], None, "expected a rate such as '10gbit'"),
        (True, None, "expected a rate such as '10gbit'"),
        (-1.0, None, "above 0 for nbytes_per_s in a link, got -1"),
        (None, 1, "expected 2 to 256 hosts for an estimate"),
        ("1gbit", "4", "expected 2 to 256 hosts for an estimate"),
    ],
)
def test_what_cannot_be_estimated_is_one_sentence(rate: Any, hosts: Any, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Recorder("DDP").estimate(Between(alone()), rate, hosts)


def test_what_can_be_estimated_passes() -> None:
    for rate, hosts in ((None, None), ("10gbit", 8), (1e9, 2), ("unlimited", None)):
        assert Recorder("DDP").estimate(Between(alone()), rate, hosts) is None


def test_of_fsdp_the_weights_count_and_what_was_waited_for() -> None:
    now = 0.0
    recorder, exchange = Recorder("FSDP2", lambda: now), alone()
    for number in range(LEAST_STEPS + 2):
        for count in COUNTS:
            recorder.gathered(count, 0.1)
            bucket(recorder, exchange, torch.full((count,), 1.0 + number))
        now += 1.0
        recorder.end(StepCost(number, 0.3))
        assert recorder.is_ready == (number >= LEAST_STEPS)
    found = recorder.recorded
    assert found.times.median.exposed_s == pytest.approx(0.5)
    assert found.times.median.compute_s == pytest.approx(0.5)
    assert found.gathers == found.counts == COUNTS
    assert [each.tolist() for each in found.gradients] == [[float(step)] * 640 for step in (2, 3, 4, 5)]


@pytest.mark.parametrize(("warm_up", "steps"), [(2, [2]), (3, [2, 3]), (7, [4, 5, 6, 7])])
def test_the_last_steps_of_a_warm_up_give_the_excerpts(warm_up: int, steps: list[int]) -> None:
    now = 0.0
    recorder = Recorder("FSDP2", lambda: now, warm_up=warm_up)
    for number in range(1, warm_up + 4):
        values = torch.full((8,), float(number))
        count = recorder.handed_over(values)
        if count:
            recorder.keep(values[:count])
        now += number
        recorder.end(StepCost(number))
    assert [each.tolist() for each in recorder.recorded.gradients] == [[float(step)] * 8 for step in steps]
    assert len(recorder.recorded.times) == 3, "from the end of the warm-up on"
    assert recorder.recorded.times.median.compute_s == warm_up + 2


def alone() -> Exchange:
    (link,) = loopback(1)
    return Exchange(link, Plan())
