"""Plans whose expected times are close are tried for some steps each, and the fastest one stays.

A prediction can't know everything: hosts that share cores, and networks whose lines differ, prefer other
algorithms than it. Steps of a trial are steps of the training, so that a trial costs what slower plans cost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isinf
from statistics import median
from typing import Self

from gradwire.auto.decision import SAME, Decision, best_of, same_way, stays
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.search.select import UNCERTAINTY
from gradwire.units import format_duration

TURN = 5
"""The steps of a turn; the first one, in which connections and buffers are new, doesn't count."""
MOST_SAME = 0.15
"""Plans that differ by more are never as fast as each other, however much their steps scatter."""
_BY_CHANCE = 2.0
"""Means of so few steps differ by more than so many quartiles' distances in one of twenty pairs."""


class Trial:
    """The decisions that are tried, the most promising first, and what steps have taken with them.

    They have turns there and back, the last one a turn of twice the steps, so that none gains from a machine
    that becomes faster or slower meanwhile: the first steps after a choice are slower than later ones.

    Parameters
    ----------
    decisions
        Those, of which there is none where nothing was decided yet.
    present
        The plan that was in use before. If it is the first to be tried, it stays unless another is clearly
        better.
    """

    def __init__(self, decisions: Sequence[Decision], present: Plan | None = None) -> None:
        self.decisions = tuple(decisions)
        self._turns_s: list[float] = []
        self._disagreements: list[float] = []
        self._before = present

    def to_json(self) -> str:
        """Return the decisions as a JSON list."""
        return json.dumps([json.loads(each.to_json()) for each in self.decisions])

    @classmethod
    def from_json(cls, text: str, present: Plan | None = None) -> Self:
        """Read what ``to_json`` wrote. Raises ``SpecError``."""
        try:
            decisions = [Decision.from_json(json.dumps(each)) for each in json.loads(text)]
        except (TypeError, ValueError) as error:
            raise SpecError(f"these are no decisions: {error}") from error
        return cls(decisions, present)

    @property
    def present(self) -> Decision | None:
        """The decision whose turn it is; None once all had theirs, or if there is nothing to compare."""
        count = len(self.decisions)
        if count <= 1 or len(self._turns_s) == 2 * count - 1:
            return None
        found = self.decisions[self._index]
        return replace(found, reason=f"{found.reason}; on trial, {self._index + 1} of {count}")

    @property
    def steps(self) -> int:
        """The steps of the present turn."""
        return 2 * TURN if self._index == len(self.decisions) - 1 else TURN

    def note(self, step_s: float, disagreement: float) -> None:
        """Note what steps of the present turn took, and the quartiles' distance from their middle.

        The former is infinite if no step was timed; the latter is a share of the middle.
        """
        self._turns_s.append(step_s)
        self._disagreements.append(disagreement)

    @property
    def _index(self) -> int:
        last = len(self.decisions) - 1
        return last - abs(last - len(self._turns_s))

    @property
    def _same(self) -> float:
        """By what share plans may differ that are as fast as each other."""
        return min(max(SAME, _BY_CHANCE * median(self._disagreements)), MOST_SAME)

    def best(self) -> Decision:
        """Return what stays: the fastest to a loss, by what steps took, or one as fast that is leaner.

        Plans are as fast if they differ by less than ``SAME``, or than chance explains. A plan that
        compresses has to be faster than those that don't by more than predictions are uncertain.
        """
        if all(map(isinf, self._turns_s)):
            return self.decisions[0]
        there_and_back = zip(self.decisions, self._turns_s, reversed(self._turns_s), strict=False)
        tried = [replace(each, step_s=(there_s + back_s) / 2) for each, there_s, back_s in there_and_back]
        exact_s = min((each.step_s for each in tried if each.plan.codec.EXACT), default=inf)
        worth_s = (1 - UNCERTAINTY) * exact_s
        worth = [each for each in tried if each.plan.codec.EXACT or each.to_loss_s <= worth_s]
        best, first = best_of(worth, self._same), tried[0]
        if self._before is not None and same_way(first.plan, self._before) and first in worth:
            best = first if stays(first, best, self._same) else best
        timed = [each for each in tried if not isinf(each.step_s)]
        times = ", ".join(f"{each.in_short} {format_duration(each.step_s)}" for each in timed)
        return replace(
            best,
            uncompressed_s=best.uncompressed_s if isinf(exact_s) else exact_s,
            reason=f"{best.reason}; tried for {2 * TURN} steps each: {times}{self._scatter}",
        )

    @property
    def _scatter(self) -> str:
        if self._same <= SAME:
            return ""
        return f", of which those that differ by less than {self._same:.0%} are equal"
