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


def slower(result: RunResult, factor: float) -> RunResult:
    return replace(
        result, epochs=tuple(replace(each, train_s=factor * each.train_s) for each in result.epochs)
    )


def test_the_verdict_compares_attach_with_ddp_and_its_hook(on_ddp: tuple[RunResult, ...]) -> None:
    assert verdict(found(on_ddp)) == (
        "attach + fp8 is 4.0 times as fast as DDP and 2.0 times as fast as DDP + bf16 hook, to the same "
        "held-out loss (0.5000)"
    )
    without = (on_ddp[0], on_ddp[3])
    assert verdict(found(without)) == (
        "Pipe-SGD + fp8 is 5.0 times as fast as DDP, to the same held-out loss (0.5000)"
    )


def test_the_command_for_ones_own_model_works() -> None:
    words = plan.parser().parse_args(shlex.split(prediction(4, "1gbit"))[2:])
    plan._check(words)
    plan.read_request(words)
    assert (words.hosts, words.rate) == (4, "1gbit")


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.1, "as fast as DDP + bf16 hook (a tie: 0.91x)"),
        (0.95, "as fast as DDP + bf16 hook (a tie: 1.05x)"),
        (0.5, "2.0 times as fast as DDP + bf16 hook"),
        (1.5, "1.5 times slower than DDP + bf16 hook"),
    ],
)
def test_ties_are_called_ties_and_losses_losses(
    on_ddp: tuple[RunResult, ...], factor: float, words: str
) -> None:
    ddp, hook, attach, _ = on_ddp
    as_hook = replace(slower(hook, factor), run=attach.run)
    assert f"times as fast as DDP and {words}, to" in verdict(found((ddp, hook, as_hook)))


def test_runs_that_miss_the_loss_are_named(on_ddp: tuple[RunResult, ...]) -> None:
    def missing(result: RunResult) -> RunResult:
        return replace(result, epochs=tuple(replace(each, held_out_loss=0.6) for each in result.epochs))

    ddp, hook, attach, pipe = on_ddp
    assert verdict(found((ddp, missing(hook), attach))) == (
        "attach + fp8 is 4.0 times as fast as DDP, to the same held-out loss (0.5000); DDP + bf16 hook did "
        "not reach it"
    )
    assert verdict(found((ddp, hook, missing(attach), pipe))).startswith(
        "Pipe-SGD + fp8 is 5.0 times as fast"
    )
    assert "; attach + fp8 did not reach it" in verdict(found((ddp, hook, missing(attach), pipe)))
    assert verdict(found((ddp, missing(attach), missing(pipe)))) == (
        "No run of gradwire reached the loss at which DDP ends, 0.5000"
    )


def test_no_speed_counts_if_the_baseline_has_not_learned(on_ddp: tuple[RunResult, ...]) -> None:
    ddp = replace(on_ddp[0], epochs=tuple(replace(each, accuracy=0.11) for each in on_ddp[0].epochs))
    assert verdict(found((ddp, *on_ddp[1:]))) == (
        "DDP did not learn: its top-1 accuracy at the end is 11.0 %, so speeds don't count; train for more "
        "--epochs"
    )
