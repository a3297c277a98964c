from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gradwire import Auto, Exchange, Link, Plan
from gradwire.autotune.costs import PacedWork, Together, Work, at_once
from gradwire.autotune.settings import DEFAULT
from gradwire.sync.messages import gather
from support.piloted import Run
from support.ranks import run_ranks
from support.told_line import WARM_UP, tell_line

STEP_S, FIRST = 1.0, 6
CONFIG = replace(
    DEFAULT, paced_share=0.2, paced_doubling_steps=20, most_paced_steps=60, meeting_steps=5, most_trials=1
)


def _ranks(exchange: Exchange) -> list[list[float]]:
    return gather(exchange, [float(exchange.link.rank + 1)])


class Rank:
    """One rank between steps, whose clock moves only in its own pieces of work."""

    def __init__(self, link: Link, piece_s: float, meeting_s: float = 0.0) -> None:
        self.exchange, self.piece_s, self.meeting_s = Exchange(link, Plan()), piece_s, meeting_s
        self.now = 0.0
        self.exchanged: list[str] = []
        self.pieces = 0

    def exchange_now(self, what: str, call: Callable[[Exchange], Any]) -> Any:
        self.exchanged.append(what)
        self.now += self.meeting_s if what == "progress" else 0.0
        return call(self.exchange)

    def connect_lanes(self, number: int) -> str:
        raise AssertionError(number)

    def work(self, *counts: int) -> Work[list[float]]:
        """Add up the ranks after so many local pieces each time; return the sums."""
        sums = []
        for count in counts:
            for _ in range(count):
                self.pieces += 1
                self.now += self.piece_s
                yield None
            rows = yield Together("a sum", _ranks)
            sums.append(sum(row[0] for row in rows))
        return sums

    def run(self, work: Work[Any], *, urgent: bool = True) -> tuple[int, Any, list[float]]:
        """Return the number of the last step, the result, and the seconds of work before each step."""
        paced = PacedWork(work, FIRST, STEP_S, 10.0, lambda: self.now, CONFIG, urgent=urgent)
        spent = []
        for step in range(FIRST, FIRST + 1000):
            began, sync = self.now, self
            is_done = paced.advance(step, sync)  # type: ignore[arg-type]
            spent.append(self.now - began)
            if is_done:
                return step, paced.result, spent
        raise AssertionError("the work never ends")


def test_work_that_takes_no_time_is_done_before_one_step() -> None:
    def run(link: Link) -> Any:
        return Rank(link, 0.0).run(Rank(link, 0.0).work(3, 100, 1))

    for step, sums, _ in run_ranks(3, run):
        assert (step, sums) == (FIRST, [6.0] * 3)


def test_ranks_of_different_speed_end_in_the_same_step() -> None:
    def run(link: Link) -> Any:
        rank = Rank(link, 0.04 * link.rank)
        return rank.run(rank.work(10, 20 * (1 + link.rank), 1))

    first, *others = run_ranks(3, run)
    assert all((step, sums) == first[:2] for step, sums, _ in others)
    assert first[1] == [6.0] * 3
    assert first[0] > FIRST + 5


def test_a_step_has_its_share_of_the_work_and_at_most_a_piece_more() -> None:
    piece_s = 0.03

    def run(link: Link) -> Any:
        rank = Rank(link, piece_s)
        return *rank.run(rank.work(100)), rank.exchanged

    for step, _, spent, exchanged in run_ranks(2, run):
        assert sum(spent) == pytest.approx(100 * piece_s)
        assert max(spent[:20]) <= 0.1 * STEP_S + piece_s
        assert 0.1 * STEP_S < max(spent[20:]) <= 0.2 * STEP_S + piece_s
        assert exchanged == ["progress"] * (step - FIRST + 1) + ["a sum"], "comparisons take no time"


@pytest.mark.parametrize(
    ("meeting_s", "steps"),
    [(0.09, 1), (0.11, 2), (0.29, 3), (1e9, 5)],
    ids=["shorter", "longer", "three shares", "at most meeting_steps"],
)
def test_ranks_compare_their_progress_as_often_as_it_takes_no_more_than_the_share(
    meeting_s: float, steps: int
) -> None:
    def run(link: Link) -> Any:
        rank = Rank(link, 0.2, meeting_s * (2 - link.rank))  # rank 1 arrives last, and waits least
        return *rank.run(rank.work(40)), rank.exchanged

    for step, _, _, exchanged in run_ranks(2, run):
        late = step - FIRST
        # The first comparison, in the first step, is timed; until then, the next step has one.
        assert exchanged.count("progress") == 2 + (late - 1) // steps
        assert late < 40 + steps


@pytest.mark.parametrize("urgent", [True, False])
def test_however_slow_a_rank_is_all_are_done_after_a_fixed_number_of_steps(*, urgent: bool) -> None:
    def run(link: Link) -> Any:
        rank = Rank(link, 100.0 * link.rank)
        return rank.run(rank.work(200, 3, 400), urgent=urgent)

    steps = CONFIG.most_paced_steps * (1 if urgent else CONFIG.unhurried_ratio)
    for step, sums, spent in run_ranks(2, run):
        assert (step, sums) == (FIRST + steps, [3.0] * 3)
        assert len(spent) == steps + 1


@pytest.mark.parametrize("meeting_s", [0.0, 0.04, 0.4])
def test_work_without_hurry_takes_its_share_of_the_steps_however_large_a_piece_is(meeting_s: float) -> None:
    piece_s, count = 0.25, 12

    def run(link: Link) -> Any:
        rank = Rank(link, piece_s * link.rank, meeting_s)
        return rank.run(rank.work(count), urgent=False)

    for _, sums, spent in run_ranks(2, run):
        assert sums == [3.0]
        assert len(spent) < CONFIG.unhurried_ratio * CONFIG.paced_doubling_steps
        assert max(spent) <= 0.1 * STEP_S + piece_s + meeting_s
        for end in range(1, len(spent) + 1):
            # The second comparison comes before the first one is known to be long.
            assert sum(spent[:end]) <= 0.2 * STEP_S * end + piece_s + 2 * meeting_s


def test_work_that_becomes_urgent_has_a_piece_in_every_step() -> None:
    later = 30

    def run(link: Link) -> Any:
        rank = Rank(link, 0.5)
        paced = PacedWork(rank.work(20), FIRST, STEP_S, 10.0, lambda: rank.now, CONFIG, urgent=False)
        pieces = []
        for step in range(FIRST, FIRST + 100):
            if step == FIRST + later:
                paced.hurry(step)
            is_done = paced.advance(step, rank)  # type: ignore[arg-type]
            pieces.append(rank.pieces)
            if is_done:
                return pieces
        raise AssertionError("the work never ends")

    for pieces in run_ranks(2, run):
        assert pieces[later - 1] <= 1 + later * 0.1 * STEP_S / 0.5
        assert len(pieces) <= later + 20 + CONFIG.meeting_steps


def test_exchanges_without_work_between_them_are_in_successive_steps() -> None:
    def run(link: Link) -> Any:
        rank = Rank(link, 1.0)
        return *rank.run(rank.work(0, 0, 0))[:2], rank.exchanged

    for step, sums, exchanged in run_ranks(2, run):
        assert (step, sums) == (FIRST + 2, [3.0] * 3)
        assert exchanged == ["a sum"] * 3, "all ranks know where they are"


def test_work_at_once_is_the_same_work() -> None:
    def run(link: Link) -> list[float]:
        return at_once(Rank(link, 1.0).work(2, 3), Exchange(link, Plan()))

    assert run_ranks(3, run) == [[6.0] * 2] * 3


@pytest.mark.parametrize("slow", [(0.001, 0.0), (0.0, 3.0), (7.0, 3.0)])
def test_a_busy_machine_delays_a_decision_by_a_limited_number_of_steps(
    slow: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at a rank's clock takes it so many seconds, of which every piece of work has some."""
    tell_line(monkeypatch)

    def run(link: Link) -> Run:
        one = Run(link, Auto(config=CONFIG))
        one.tick_s = slow[link.rank]
        for number in range(1, WARM_UP + CONFIG.most_paced_steps + 4):
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    step, decision = runs[0].tuner.decisions[0]
    assert runs[0].plans[step - 2 : step] == [Auto().first_plan, decision.plan]
    assert WARM_UP + 1 < step <= WARM_UP + 1 + CONFIG.most_paced_steps
