"""Time to equal loss, against curves whose crossings are known by hand."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli import plan
from gradwire_lab.job.record import EqualLoss, RunResult, equal_loss, prediction, reach, verdict


@pytest.mark.parametrize(
    ("losses", "target", "expected"),
    [
        ([2.0, 1.0, 0.5], 0.75, (25.0, 2.5)),
        ([2.0, 1.0, 0.5], 1.0, (20.0, 2.0)),
        ([2.0, 1.0, 0.5], 0.5, (30.0, 3.0)),
        ([2.0, 1.0, 0.5], 2.5, (10.0, 1.0)),
        ([2.0, 1.0, 0.5], 0.4, None),
        ([2.0, 0.5, 1.0], 1.0, (10 + 20 / 3, 1 + 2 / 3)),
        ([2.0, math.nan, 0.5], 1.0, (30.0, 3.0)),
        ([math.nan], 1.0, None),
    ],
)
def test_a_loss_is_reached_between_two_evaluations(
    losses: list[float], target: float, expected: tuple[float, float] | None
) -> None:
    curve = [(10.0 * number, float(number), loss) for number, loss in enumerate(losses, start=1)]
    found = reach(curve, target)
    assert found == expected if expected is None or found is None else found == pytest.approx(expected)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.floats(0.01, 10), st.floats(0.1, 10))
def test_it_is_on_the_curve_and_scales_with_time(losses: list[float], target: float, slower: float) -> None:
    curve = [(10.0 * number, float(number), loss) for number, loss in enumerate(losses, start=1)]
    found = reach(curve, target)
    assert (found is None) == (min(losses) > target)
    if found is not None:
        assert 10 <= found[0] <= 10 * len(losses)
        assert math.isclose(found[1], found[0] / 10)
        stretched = reach([(step, slower * seconds, loss) for step, seconds, loss in curve], target)
        assert stretched is not None
        assert math.isclose(stretched[1], slower * found[1])


def found(results: tuple[RunResult, ...]) -> EqualLoss:
    equal = equal_loss(results)
    assert equal is not None
    return equal


def test_the_loss_to_reach_is_the_median_of_the_baselines_last(on_ddp: tuple[RunResult, ...]) -> None:
    equal = found(on_ddp)
    assert equal.baseline is on_ddp[0]
    assert equal.target == 0.5  # of 1, 0.5 and 0.25
    assert equal.seconds(on_ddp[0].run) == pytest.approx(8.0)
    assert [equal.gain(result.run) for result in on_ddp] == pytest.approx([1, 2, 4, 5])


def test_who_stays_above_it_has_not_reached_it(on_ddp: tuple[RunResult, ...]) -> None:
    high = tuple(replace(epoch, held_out_loss=0.6) for epoch in on_ddp[3].epochs)
    equal = found((*on_ddp[:3], replace(on_ddp[3], epochs=high)))
    assert equal.reached[on_ddp[3].run] is None
    assert equal.gain(on_ddp[3].run) is None


def test_without_a_baseline_nothing_is_compared(
    results: tuple[RunResult, ...], on_ddp: tuple[RunResult, ...]
) -> None:
    assert equal_loss(on_ddp[1:]) is None
    assert equal_loss(on_ddp[:1]) is None, "it is alone"
    short = replace(on_ddp[0], epochs=on_ddp[0].epochs[:2])
    assert equal_loss((short, *on_ddp[1:])) is None
    ill = replace(
        on_ddp[0], epochs=(*on_ddp[0].epochs[:2], replace(on_ddp[0].epochs[2], held_out_loss=math.nan))
    )
    assert equal_loss((ill, *on_ddp[1:])) is None
    assert found(results).baseline is results[1], "D-Sync, where there is no DDP"


def test_the_verdict_names_the_best_of_gradwires_runs_and_a_command_that_works(
    on_ddp: tuple[RunResult, ...],
) -> None:
    assert (
        verdict(found(on_ddp)) == "gradwire (Pipe-SGD + fp8) takes 5.0x less time to the same loss than DDP"
    )
    words = plan.parser().parse_args(shlex.split(prediction(4, "1gbit"))[2:])
    plan._check(words)
    plan.read_request(words)
    assert (words.hosts, words.rate) == (4, "1gbit")


def test_a_verdict_that_is_none_says_so(on_ddp: tuple[RunResult, ...]) -> None:
    slow = tuple(
        replace(result, epochs=tuple(replace(each, train_s=10 * each.train_s) for each in result.epochs))
        for result in on_ddp[2:]
    )
    assert verdict(found((*on_ddp[:2], *slow))).startswith(
        "gradwire (Pipe-SGD + fp8) takes 2.0x more time to the same loss than DDP"
    )
    assert verdict(found(on_ddp[:2])).startswith("No run of gradwire reached the loss at which DDP")


def test_a_run_that_takes_as_long_is_said_to(on_ddp: tuple[RunResult, ...]) -> None:
    ddp, attach = on_ddp[0], on_ddp[2]
    for factor, words in (
        (0.99, "as long to the same loss as"),
        (1.04, "as long to the same loss as"),
        (0.5, "2.0x less time to the same loss than"),
        (2.0, "2.0x more time to the same loss than"),
    ):
        epochs = tuple(replace(each, train_s=factor * each.train_s) for each in ddp.epochs)
        equal = equal_loss((ddp, replace(attach, epochs=epochs)))
        assert equal is not None
        assert verdict(equal) == f"gradwire ({attach.run.label}) takes {words} DDP"
