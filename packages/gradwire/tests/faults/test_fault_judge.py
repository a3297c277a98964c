"""The judge of the matrix finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from faults.case import STEPS, TIMEOUT_S, WORLD, Case, Report
from faults.choices import check_choices
from faults.judge import MARGIN_S, check_reference, judge
from faults.rows import End, Moment, Row, Victim
from faults.world import Outcome

RIGHT = [f"state {update}" for update in range(STEPS + 1)]
REFERENCE = dict.fromkeys(range(WORLD), RIGHT)
VICTIM = 2
LOST = Row("lost", Moment.FRAME, "drop", says="out of order")
GONE = replace(LOST, victim=Victim.GONE)
HARMLESS = replace(LOST, end=End.RIGHT)


def failed(rank: int, updates: int = 2, **others: Any) -> Report:
    report = Report(
        rank, RIGHT[: updates + 1], RIGHT[updates], "ExchangeError", named=True, again=("ExchangeError", 0.0)
    )
    report.text = (
        f"step 1 of the ring schedule: rank {rank} receiving from rank {(rank + 1) % WORLD}: out of order"
    )
    return replace(report, struck=rank == VICTIM, **others)


def finished(rank: int) -> Report:
    return Report(rank, RIGHT, RIGHT[-1], struck=rank == VICTIM)


def problems(row: Row, *reports: Report, hung: tuple[int, ...] = ()) -> list[str]:
    return judge(
        Outcome(Case("ddp", row, "0", victim=VICTIM), {r.rank: r for r in reports}, [*hung]), REFERENCE
    ).problems


def test_what_should_be_is_no_problem() -> None:
    assert problems(LOST, failed(0), failed(1, updates=3), failed(2)) == []
    assert problems(GONE, failed(0), failed(1)) == []
    assert problems(HARMLESS, finished(0), finished(1), finished(2)) == []
    assert problems(replace(LOST, victim=Victim.FINISHES), failed(0), failed(1), finished(2)) == []


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (failed(1, final="another"), "rank 1: ExchangeError has changed weights or optimizer state"),
        (failed(1, history=["state 0", "else"], final="else"), "after 1 updates they are not those"),
        (failed(1, named=False, error="RuntimeError"), "RuntimeError is no error of gradwire's"),
        (failed(1, seconds=TIMEOUT_S + MARGIN_S + 0.1), "the error came after 7.1 s"),
        (failed(1, text="step 1: out of order"), "does not name this rank"),
        (failed(1, text="rank 1 to rank 0: out of order"), "does not say where"),
        (failed(1, text="step 1: rank 1: out of order"), "names no peer"),
        (failed(1, again=("unnamed None: ", 0.0)), "the step after the error"),
        (failed(1, updates=4), "the ranks are 2 updates apart"),
        (finished(1), "rank 1: no error"),
    ],
)
def test_a_survivor_that_did_not_fail_as_it_should(report: Report, problem: str) -> None:
    assert problem in "; ".join(problems(LOST, failed(0), report, failed(2)))


def test_a_rank_that_hangs_or_says_nothing() -> None:
    assert problems(GONE, failed(0), failed(1), hung=(1,)) == ["rank 1 hangs"]
    assert problems(GONE, failed(0)) == ["rank 1 gave no report"]
    assert problems(LOST, failed(0), failed(1)) == ["rank 2 gave no report"]


def test_a_rank_that_is_aborted() -> None:
    outcome = Outcome(Case("ddp", GONE, "0", victim=VICTIM), {r.rank: r for r in (failed(0), failed(1))}, [])
    outcome.aborted = [VICTIM]
    assert judge(outcome, REFERENCE).problems == [f"rank {VICTIM} was aborted"]


def test_errors_that_do_not_tell_the_reason() -> None:
    texts = [failed(rank, text=f"rank {rank}: step 1 to rank {(rank + 1) % WORLD}") for rank in range(WORLD)]
    assert "no error says 'out of order'" in problems(LOST, *texts)[0]


def test_a_fault_that_did_not_happen() -> None:
    unmet = replace(finished(VICTIM), struck=False)
    assert problems(HARMLESS, finished(0), finished(1), unmet) == ["no frame met the fault"]
    scanned = replace(HARMLESS, moment=Moment.OUTSIDE)
    assert problems(scanned, *map(finished, range(WORLD))) == ["0 scans came through"]


def test_a_harmless_fault_that_does_harm() -> None:
    found = problems(
        HARMLESS, finished(0), failed(1), replace(finished(2), history=RIGHT[:-1], final=RIGHT[-2])
    )
    assert found[0] == f"rank 1: ExchangeError: {failed(1).text}"
    assert found[1] == f"rank 2: {STEPS - 1} updates instead of {STEPS}"


@pytest.mark.parametrize(("counts", "right"), [((1, 1, 1), True), ((0, 0, 0), False), ((1, 1, 2), False)])
def test_a_nan_must_be_carried_to_every_rank_and_nowhere_else(counts: tuple[int, ...], right: bool) -> None:
    row = replace(LOST, end=End.NAN)
    reports = [Report(rank, ["other"], "other", nan=count, struck=True) for rank, count in enumerate(counts)]
    assert (problems(row, *reports) == []) is right
    apart = [replace(report, history=[str(report.rank)], final=str(report.rank), nan=1) for report in reports]
    assert problems(row, *apart) == ["the ranks differ"]


def test_an_undisturbed_run_that_is_no_reference() -> None:
    assert check_reference("ddp", REFERENCE) == []
    assert check_reference("ddp", {**REFERENCE, 1: ["x"] * (STEPS + 1)}) != []
    assert check_reference("ddp", {**REFERENCE, 1: RIGHT[:-1]}) != []
    assert check_reference("ddp", {0: RIGHT, 1: RIGHT}) == ["2 ranks report"]
    turned = {**REFERENCE, 1: [*RIGHT[1:], RIGHT[0]]}
    assert check_reference("ddp", turned) == ["the ranks differ"]
    assert check_reference("fsdp", turned) == []


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ([[6, 10, 33]] * 3, None),
        ([[6, 10, 33], [6, 10, 33], [6, 10]], "the ranks chose before"),
        ([[6, 33]] * 3, "plans were not tried"),
        ([[6, 10]] * 3, "nothing was decided a second time"),
    ],
)
def test_a_run_that_does_not_choose_as_expected_is_no_reference(chosen: Any, problem: str | None) -> None:
    found = check_choices(chosen)
    assert (problem is None) == (not found)
    assert problem is None or found[0].startswith(problem)
