"""Trials of plans with similar expected times: each plan runs for some steps, and the fastest one stays.

Predictions don't include everything: if hosts share cores or links differ, a different algorithm may be the
fastest. The steps of a trial are training steps, so it costs only the extra time of slower plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isinf
from statistics import fmean, median

from gradwire.autotune.decision import Decision, best_of, same_way, stays
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.plan import Plan
from gradwire.planner.predict import UNCERTAINTY
from gradwire.units import exact_size, format_duration


class Trial:
    """The decisions on trial, the most promising first, and their measured step times.

    They have turns in this order and then in reverse order, so that no plan gains if the machine becomes
    steadily faster or slower, by up to a twentieth per turn. Slow plans have no second turn: their steps cost
    the most and add the least information.

    Trials may cost ``trial_share`` of the first ``trial_window_steps`` steps: the time of their steps beyond
    those of the fastest plan. Decisions whose expected cost exceeds the rest of it have no turn.

    If the first plan was in use before (``present``), it stays unless another one is clearly better.
    """

    def __init__(
        self, decisions: Sequence[Decision], present: Plan | None = None, config: AutoConfig = DEFAULT
    ) -> None:
        self.decisions, self._config = tuple(decisions), config
        self._turns_s: list[list[float]] = [[] for _ in self.decisions]
        self._spent_s = 0.0  # beyond the fastest plan's steps
        self._left = self._affordable(range(len(decisions)), turns=2)  # indices of the next turns
        self._disagreements: list[float] = []
        self._before = present

    @property
    def present(self) -> Decision | None:
        """The decision whose turn it is, or None after the last turn, or if there is nothing to compare.

        Its reason is short, because the reason of the final decision has the details.
        """
        if not self._left:
            return None
        index = self._left[0]
        found, again = self.decisions[index], ", again" if self._turns_s[index] else ""
        said = f"{self._named(found)}: expected step time {format_duration(found.step_s)}"
        return replace(found, reason=f"{said}; on trial, {index + 1} of {len(self.decisions)}{again}")

    @property
    def turns(self) -> int:
        """The number of completed turns."""
        return sum(map(len, self._turns_s))

    @property
    def is_turning(self) -> bool:
        """Whether all decisions have had their first turn, and second turns begin."""
        return bool(self._left) and {*map(len, self._turns_s)} == {1}

    @property
    def steps(self) -> int:
        """The number of steps of the present turn."""
        return self._config.turn_steps + self.settling

    @property
    def settling(self) -> int:
        """The number of untimed steps in the present turn, besides the first step, which is never timed.

        The very first turn is twice as long, and its first half isn't timed: after a choice, steps are slower
        for a while.
        """
        return self._config.turn_steps if self._left and not any(self._turns_s) else 0

    def note(self, step_s: float, disagreement: float) -> None:
        """Record the step time of the present turn, infinite if no step was timed, and its scatter."""
        self._turns_s[self._left.pop(0)].append(step_s)
        if not isinf(step_s):
            self._disagreements.append(disagreement)
        timed = [each for turns_s in self._turns_s for each in turns_s if not isinf(each)]
        self._spent_s = self._config.turn_steps * sum(each - min(timed) for each in timed)
        is_second = max(map(len, self._turns_s)) > 1
        if self._left and not is_second and self._spent_s > self._most_s:
            self._left = []
        if not self._left and not is_second:
            self._left = self._affordable(self._ahead(), turns=1)[::-1]

    @property
    def _most_s(self) -> float:
        """The most seconds that trials may cost."""
        config = self._config
        return config.trial_share * config.trial_window_steps * self.decisions[0].step_s

    def _affordable(self, indices: Iterable[int], turns: int) -> list[int]:
        """Return the decisions that may have this number of turns at their cost, or none if only one may.

        A decision's measured step time is expected again.
        """
        known = self._tried() if any(self._turns_s) else self.decisions
        timed_s = [each.step_s for each in known if not isinf(each.step_s)]
        found, spent_s = list[int](), self._spent_s
        for index in indices:
            more_s = known[index].step_s - min(timed_s, default=0.0)
            cost_s = 0.0 if isinf(more_s) else turns * self._config.turn_steps * more_s
            if not found or spent_s + cost_s <= self._most_s:
                found.append(index)
                spent_s += cost_s
        return found if len(found) > 1 else []

    def _ahead(self) -> list[int]:
        """Return the indices of decisions that have a second turn, including untimed decisions."""
        took = [each.to_loss_s for each in self._tried()]
        limit_s = self._config.behind_ratio * min(took)
        return [index for index, each in enumerate(took) if not limit_s < each < inf]

    def _tried(self) -> list[Decision]:
        """Return the decisions with their measured step times."""
        pairs = zip(self.decisions, self._turns_s, strict=True)
        return [replace(each, step_s=_mean(turns_s)) for each, turns_s in pairs]

    @property
    def _same(self) -> float:
        """The largest relative difference between the times of equally fast plans."""
        config = self._config
        by_chance = config.chance_ratio * median(self._disagreements)
        return min(max(config.equal_share, by_chance), config.most_equal_share)

    def best(self) -> Decision:
        """Return the decision that stays: the best one by measured times (``best_of``).

        Plans are equally fast if they differ by less than ``equal_share``, or than scatter explains. A plan
        that compresses must be faster than exact plans by more than the uncertainty of predictions. A plan
        without a second turn can't stay: if the machine has become slower since, it would seem the fastest.
        """
        tried = self._tried()
        if all(isinf(each.step_s) for each in tried):
            return self.decisions[0]
        turns = [len(each) for each in self._turns_s]
        ahead = [each for each, own in zip(tried, turns, strict=True) if own == max(turns)]
        worth_s = (1 - UNCERTAINTY) * _exact_s(ahead)
        worth = [each for each in ahead if each.plan.codec.EXACT or each.to_loss_s <= worth_s]
        best, first = best_of(worth, self._same, self._config), tried[0]
        if self._before is not None and same_way(first.plan, self._before) and first in worth:
            best = first if stays(first, best, self._same, self._config) else best
        timed = [each for each in tried if not isinf(each.step_s)]
        turn = self._config.turn_steps
        times = ", ".join(f"{self._named(each)} {format_duration(each.step_s)}" for each in timed)
        shorter = f", slow plans for {turn}" if len(ahead) < len(tried) else ""
        said = f"tried for {turn * max(turns)} steps each{shorter}: {times}"
        exact_s = _exact_s(tried)
        return replace(
            best,
            uncompressed_s=best.uncompressed_s if isinf(exact_s) else exact_s,
            reason=f"{best.reason}; {said}{self._scatter}{self._staying(best)}",
        )

    def _named(self, decision: Decision) -> str:
        """Return a name of a decision that is unique in this trial."""
        same = sum(each.in_short == decision.in_short for each in self.decisions)
        size = exact_size(decision.plan.segment_nbytes)
        return f"{decision.in_short} in segments of {size}" if same > 1 else decision.in_short

    def _staying(self, best: Decision) -> str:
        """Return a clause that names the best plan if its reason doesn't identify it, or an empty string."""
        named = self._named(best)
        return "" if named == best.in_short else f"; {named} stays"

    @property
    def _scatter(self) -> str:
        if self._same <= self._config.equal_share:
            return ""
        return f"; plans within {self._same:.0%} are equally fast"


def _exact_s(tried: Sequence[Decision]) -> float:
    """Return the shortest step time without compression, or infinity if no such plan was tried."""
    return min((each.step_s for each in tried if each.plan.codec.EXACT), default=inf)


def _mean(turns_s: Sequence[float]) -> float:
    """Return the mean of the timed turns, or infinity if there are none."""
    timed = [each for each in turns_s if not isinf(each)]
    return fmean(timed) if timed else inf
