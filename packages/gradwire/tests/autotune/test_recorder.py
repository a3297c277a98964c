from __future__ import annotations

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.autotune import recorder as module
from gradwire.autotune.config import DEFAULT
from gradwire.autotune.recorder import Recorder, check_asked, read_answer
from gradwire.errors import DataError, SpecError
from gradwire.exchange.request import BucketRequest
from support.ranks import run_ranks
from support.sums import bits

LEAST_STEPS = DEFAULT.estimate_steps
COUNTS = (600, 40)


def step(recorder: Recorder, exchange: Exchange, number: int, counts: tuple[int, ...] = COUNTS) -> list[int]:
    """Average buckets as DDP's rounds do; return the bits of the averages."""
    averages = []
    for count in counts:
        seed = 100 * number + exchange.link.rank
        bucket = 1.0 + torch.randn(count, generator=torch.Generator().manual_seed(seed))
        reducer = recorder.sampled(exchange.run)
        recorder.handed_over(count, bucket.device)
        reducer(bucket, BucketRequest())
        averages += bits(bucket).tolist()
    recorder.end()
    return averages


def test_recorded_steps_have_the_bits_of_others_and_make_an_estimate() -> None:
    def run(link: Link) -> tuple[list[str], bool]:
        exchange, recorder, never = Exchange(link, Plan.of("fp8")), Recorder("DDP"), Recorder("DDP")
        found, same = [recorder.answer(exchange, "1gbit", 4, 20.0)], True
        for number in range(LEAST_STEPS + 2):
            before = [recorder.ready, never.ready]
            plain = never.sampled(exchange.run)
            assert plain == exchange.run, "nothing is kept of a first step"
            same = same and step(recorder, exchange, number) == step(Recorder("DDP"), exchange, number)
            assert before == [number > LEAST_STEPS, False]
        found.append(recorder.answer(exchange, "1mbit", 4, 20.0))
        found.append(recorder.answer(exchange, None, None, 20.0))
        return found, same

    results = run_ranks(2, run)
    assert [same for _, same in results] == [True, True]
    assert results[0][0] == results[1][0], "rank 0's counts"
    nothing, told, here = map(read_answer, results[0][0])
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
        return [each.numel() for each in recorder._excerpts]

    assert run_ranks(2, run) == [[640, 640]] * 2


def test_where_rank_0_cannot_measure_all_ranks_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DataError("there is no room")

    monkeypatch.setattr(module, "estimator", refuse)

    def run(link: Link) -> str:
        exchange, recorder = Exchange(link, Plan()), Recorder("DDP")
        for number in range(LEAST_STEPS + 2):
            step(recorder, exchange, number)
        return recorder.answer(exchange, "1gbit", None, 20.0)

    for text in run_ranks(2, run):
        with pytest.raises(DataError, match="no estimate: there is no room"):
            read_answer(text)


@pytest.mark.parametrize(
    ("rate", "hosts", "sentence"),
    [
        ("fast", None, "a rate is written like"),
        ([], None, "rate must be one like '10gbit'"),
        (True, None, "rate must be one like '10gbit'"),
        (-1.0, None, "nbytes_per_s must be a number above 0"),
        (None, 1, "an estimate is for 2 to 256 hosts"),
        ("1gbit", "4", "an estimate is for 2 to 256 hosts"),
    ],
)
def test_what_cannot_be_estimated_is_one_sentence(rate: object, hosts: object, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        check_asked(rate, hosts)


def test_what_can_be_estimated_passes() -> None:
    for rate, hosts in ((None, None), ("10gbit", 8), (1e9, 2), ("unlimited", None)):
        check_asked(rate, hosts)


def test_of_fsdp_the_weights_count_and_what_was_waited_for() -> None:
    now = iter(range(1000))
    recorder = Recorder("FSDP2", lambda: float(next(now)))
    for number in range(LEAST_STEPS + 2):
        for count in COUNTS:
            recorder.gathered(count)
            recorder.waited(0.1)
            recorder.scattered(torch.full((count,), 1.0 + number), torch.device("cpu"))
        recorder.took()
        assert recorder.ready == (number >= LEAST_STEPS)
    assert recorder._times.median.exposed_s == pytest.approx(0.2)
    assert recorder._times.median.compute_s == pytest.approx(0.8)
    assert recorder._last_gathers == COUNTS
    assert [each.tolist() for each in recorder._excerpts] == [[float(step)] * 640 for step in (2, 3, 4, 5)]
