"""The demo's verdict and picture, of made-up runs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from matplotlib import image

from gradwire_lab.job.demo import NetworkRuns, draw_demo, in_words, settled_step_s, show_demo
from gradwire_lab.job.options import Run
from gradwire_lab.job.record import Epoch, RunResult


def timed(run: Run, template: RunResult, steps_s: list[float], every: int) -> RunResult:
    """Return a run whose intervals between evaluations have these seconds per step."""
    epochs, total_s = [], 0.0
    for number, step_s in enumerate(steps_s, start=1):
        total_s += every * step_s
        epochs.append(Epoch(1, 0.1, 2.3, total_s, number * every, 2.3))
    return replace(template, run=run, epochs=tuple(epochs), steps=every * len(steps_s))


@pytest.fixture
def fast(on_ddp: tuple[RunResult, ...]) -> NetworkRuns:
    return NetworkRuns("1gbit", on_ddp)


@pytest.fixture
def slow(on_ddp: tuple[RunResult, ...]) -> NetworkRuns:
    return NetworkRuns(
        "100mbit",
        (
            timed(Run("ddp"), on_ddp[0], [9.0, 2.4, 2.4, 2.3, 2.4], 1),
            timed(Run("bf16-hook"), on_ddp[0], [5.0, 1.2, 1.2, 1.2, 1.2], 1),
            timed(Run("attach", "auto"), on_ddp[0], [1.0, 2.0, 0.9, 0.3, 0.3, 0.5, 0.3], 5),
        ),
    )


def test_a_step_counts_once_buffers_exist_and_the_plan_is_chosen(slow: NetworkRuns) -> None:
    assert [settled_step_s(each) for each in slow.results] == pytest.approx([2.4, 1.2, 0.3])
    (one,) = slow.results[0].epochs[:1]
    assert settled_step_s(replace(slow.results[0], epochs=(one,))) == 9.0


def test_the_verdict_is_of_both_networks(fast: NetworkRuns, slow: NetworkRuns) -> None:
    assert in_words(fast, slow) == (
        "At 1gbit, attach + fp8 is 4.0 times as fast as DDP and 2.0 times as fast as DDP + bf16 hook, to the "
        "same held-out loss (0.5000). At 100mbit, a step of attach + auto is 8.0 times as fast as DDP and "
        "4.0 times as fast as DDP + bf16 hook, once its plan is chosen; this part is too short to compare "
        "losses."
    )
    assert "100mbit" not in in_words(fast, None)


def test_a_tie_on_the_slow_network_is_called_a_tie(fast: NetworkRuns, slow: NetworkRuns) -> None:
    ddp, hook, attach = slow.results
    tied = NetworkRuns("100mbit", (ddp, hook, timed(attach.run, hook, [1.25] * 7, 5)))
    assert "and as fast as DDP + bf16 hook (a tie: 0.96x)" in in_words(fast, tied)


def test_a_run_that_is_too_short_says_so(fast: NetworkRuns) -> None:
    short = NetworkRuns("1gbit", tuple(replace(each, epochs=each.epochs[:1]) for each in fast.results))
    assert in_words(short, None).startswith(
        "At 1gbit, no comparison is possible. DDP was evaluated 1 time, and times to equal loss need 3;"
    )


def test_the_verdict_is_printed_first(
    fast: NetworkRuns, slow: NetworkRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    show_demo("digits, wide: 4 hosts", fast, slow, 4, verbose=False)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[1].startswith("At 1gbit, attach + fp8 is 4.0 times as fast as DDP")
    assert max(map(len, lines)) <= 80
    said = " ".join(printed.split())
    assert "choice of a plan: attach + auto 300 ms, DDP + bf16 hook 1200 ms, DDP 2400 ms." in said
    assert printed.endswith("  gradwire plan --model 25.6M --hosts 4 --rate 1gbit\n")


def test_the_picture_is_higher_with_a_slow_network(fast: NetworkRuns, slow: NetworkRuns) -> None:
    both, alone = (image.imread(io.BytesIO(draw_demo("demo", fast, each))) for each in (slow, None))
    assert both.shape[0] > 1.3 * alone.shape[0]
    assert both.shape[1] == alone.shape[1]
