"""The states and transitions of an automatic choice, and the judgement of step times: trials and changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, isinf
from statistics import fmean, median

from gradwire.autotune.decision import Decision, best_of, same_way, stays
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.autotune.steps import StepTime
from gradwire.plan import Plan
from gradwire.planner.predict import UNCERTAINTY
from gradwire.units import exact_size, format_duration


class TunerState(Enum):
    """The state of a run's choice between two steps.

    A run of one rank is ``ALONE``. Other runs begin in ``START``, measure in ``PROBE`` until they choose a
    plan, may compare several plans in ``TRIAL``, and keep a plan in ``HOLD``.
    """

    ALONE = "alone"
    START = "start"
    PROBE = "probe"
    TRIAL = "trial"
    HOLD = "hold"


class TunerEvent(Enum):
    """An event that all ranks observe before a step. The value is the condition in the transition table."""

    REPEATED = "the latest step is repeated"
    LOADED = "a checkpoint was loaded since the latest step"
    HAS_CHECKPOINT = "rank 0 has a checkpoint that was written while no choice was due"
    HAS_EARLY_CHECKPOINT = "rank 0 has a checkpoint that was written while a choice was due"
    HAS_EARLIER_CHOICE = "the file of decisions contains a decision for this run that the settings allow"
    KNOWS_NOTHING = "rank 0 has no usable checkpoint or earlier decision"
    CHOICE_IS_NEXT = "a choice is due before the next step, and this step isn't sampled yet"
    LACKS_SAMPLES = "a choice is due, and a rank's sample is missing or not finite"
    FOUND_NO_PLAN = "rank 0 could not predict the step times of plans"
    FOUND_ONE_PLAN = (
        "no other plan may be as good as the best plan, or step times aren't steady yet, or only the "
        "gradients have changed and the present plan is still the best"
    )
    FOUND_RIVALS = "several plans may be the best"
    HAS_NEXT_TURN = "a turn is over, and another turn in the same direction follows"
    TURNS_BACK = "all plans have had their first turn, and several plans are fast enough for another"
    HAS_NO_TURN = "the last turn is over"
    STEP_TIME_CHANGED = "the step time has changed by ``changed_step_share``, and the patience has passed"
    SOME_NEED_OTHERS = "some parameters newly break the contract, or meet it again"
    MANY_NEED_OTHERS = (
        "over ``wide_share`` of the values newly break the contract, and ``early_share_of_patience`` of the "
        "patience has passed"
    )
    PLAN_IS_UNSUITED = (
        "over ``most_excepted_share`` of the values break the contract, or the codec isn't a candidate"
    )
    LEANER_SUITS = (
        "a rejected codec now meets the contract with a margin, and sends less than ``far_less_share`` of "
        "the present plan's bytes"
    )


@dataclass(frozen=True)
class Transition:
    """A row of the transition table."""

    number: int  # in log lines
    source: TunerState | None  # None: any state
    event: TunerEvent
    action: str  # the method of ``Autotuner`` that the transition calls
    target: TunerState | None  # None: the same state
    says: str  # the reason in the log line, as a format string


START, PROBE, TRIAL, HOLD = TunerState.START, TunerState.PROBE, TunerState.TRIAL, TunerState.HOLD
E = TunerEvent  # short, so that a row takes a line
TRANSITIONS = (
    Transition(1, START, E.HAS_CHECKPOINT, "resume", HOLD, "the checkpoint's plan continues"),
    Transition(2, START, E.HAS_EARLY_CHECKPOINT, "resume", PROBE, "the checkpoint has a pending choice"),
    Transition(3, START, E.HAS_EARLIER_CHOICE, "adopt_earlier", HOLD, "an earlier run has chosen a plan"),
    Transition(4, START, E.KNOWS_NOTHING, "plan_choice", PROBE, "no usable checkpoint or earlier decision"),
    Transition(5, PROBE, E.CHOICE_IS_NEXT, "sample_all", PROBE, "the next step chooses a plan"),
    Transition(6, PROBE, E.LACKS_SAMPLES, "delay_choice", PROBE, "a sample is missing or not finite"),
    Transition(7, PROBE, E.FOUND_NO_PLAN, "adopt", HOLD, "no plan could be chosen"),
    Transition(8, PROBE, E.FOUND_ONE_PLAN, "adopt", HOLD, "one plan is expected to be the best"),
    Transition(9, PROBE, E.FOUND_RIVALS, "adopt", TRIAL, "{plans} plans may be the best"),
    Transition(10, TRIAL, E.HAS_NEXT_TURN, "adopt", TRIAL, "turns completed: {turns}"),
    Transition(11, TRIAL, E.TURNS_BACK, "adopt", TRIAL, "every plan has had its first turn"),
    Transition(12, TRIAL, E.HAS_NO_TURN, "adopt", HOLD, "all turns completed: {turns}"),
    Transition(13, HOLD, E.STEP_TIME_CHANGED, "measure_again", PROBE, "step time changed by {change:.0%}"),
    Transition(14, HOLD, E.SOME_NEED_OTHERS, "adapt", HOLD, "some parameters need other codecs"),
    Transition(
        15, HOLD, E.MANY_NEED_OTHERS, "adapt_and_choose", PROBE, "many values need a more precise codec"
    ),
    Transition(16, HOLD, E.PLAN_IS_UNSUITED, "choose_again", PROBE, "the codec breaks the contract"),
    Transition(17, HOLD, E.LEANER_SUITS, "choose_again", PROBE, "a smaller codec meets the contract"),
    Transition(18, None, E.REPEATED, "repeat", None, "step {step} is repeated"),
    Transition(19, None, E.LOADED, "forget", START, "a checkpoint was loaded"),
)
"""All transitions, one for each event."""


# Predictions don't include everything: if hosts share cores or links differ, a different algorithm may be the
# fastest. The steps of a trial are training steps, so a trial costs only the extra time of slower plans.


class Trial:
    """The decisions on trial, the most promising first, and their measured step times.

    The plans take turns in this order and then in reverse order. So no plan gains if the machine becomes
    steadily faster or slower, by up to a twentieth per turn. Slow plans have no second turn: their steps cost
    the most and add the least information.

    The cost of a trial is the time by which its steps exceed those of the fastest plan. Trials may cost
    ``trial_share`` of ``trial_window_steps`` steps. A decision gets no turn if its expected cost exceeds the
    rest of this budget.

    A first plan that was in use before (``present``) stays unless another plan is clearly better.
    """

    def __init__(
        self, decisions: Sequence[Decision], present: Plan | None = None, config: AutoConfig = DEFAULT
    ) -> None:
        self.decisions, self._config = tuple(decisions), config
        self._turns_s: list[list[float]] = [[] for _ in self.decisions]
        self._spent_s = 0.0  # the seconds that slow plans have cost so far
        self._left = self._affordable(range(len(decisions)), turns=2)  # the next turns' decisions, by index
        self._disagreements: list[float] = []
        self._before = present

    @property
    def present(self) -> Decision | None:
        """The decision whose turn it is; None after the last turn, or without any comparison."""
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
        """The number of untimed steps in the present turn after the first step, which is never timed.

        The first turn of a trial is twice as long, and its first half isn't timed: after a choice, steps are
        slower for a while.
        """
        return self._config.turn_steps if self._left and not any(self._turns_s) else 0

    def note(self, step_s: float, disagreement: float) -> None:
        """Record the present turn's step time (infinite if no step was timed) and its scatter."""
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
        config = self._config
        return config.trial_share * config.trial_window_steps * self.decisions[0].step_s

    def _affordable(self, indices: Iterable[int], turns: int) -> list[int]:
        """Return the indices of the decisions that may have ``turns`` more turns, two or more of them."""
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
        """Return the indices of the decisions that get a second turn: all but the slow decisions."""
        took = [each.to_loss_s for each in self._tried()]
        limit_s = self._config.behind_ratio * min(took)
        return [index for index, each in enumerate(took) if not limit_s < each < inf]

    def _tried(self) -> list[Decision]:
        found = []
        for each, turns_s in zip(self.decisions, self._turns_s, strict=True):
            timed_s = [turn_s for turn_s in turns_s if not isinf(turn_s)]
            found.append(replace(each, step_s=fmean(timed_s) if timed_s else inf))
        return found

    @property
    def _same(self) -> float:
        """The largest relative difference between the times of equally fast plans."""
        config = self._config
        by_chance = config.chance_ratio * median(self._disagreements)
        return min(max(config.equal_share, by_chance), config.most_equal_share)

    def best(self) -> Decision:
        """Return the decision that stays: the best by measured times (``best_of``).

        A plan that compresses must be faster than exact plans by more than the uncertainty of predictions. A
        plan without a second turn can't stay: if the machine has become slower since, this plan would seem
        the fastest.
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
        reason = f"{best.reason}; tried for {turn * max(turns)} steps each{shorter}: {times}"
        if self._same > self._config.equal_share:
            reason += f"; plans within {self._same:.0%} are equally fast"
        if self._named(best) != best.in_short:
            reason += f"; {self._named(best)} stays"
        exact_s = _exact_s(tried)
        uncompressed_s = best.uncompressed_s if isinf(exact_s) else exact_s
        return replace(best, uncompressed_s=uncompressed_s, reason=reason)

    def _named(self, decision: Decision) -> str:
        """Return a name of a decision that is unique in this trial."""
        same = sum(each.in_short == decision.in_short for each in self.decisions)
        size = exact_size(decision.plan.segment_nbytes)
        return f"{decision.in_short} in segments of {size}" if same > 1 else decision.in_short


def _exact_s(tried: Sequence[Decision]) -> float:
    return min((each.step_s for each in tried if each.plan.codec.EXACT), default=inf)


class Watch:
    """A comparison of each window of steps with the first window after a decision, equal on all ranks.

    Attributes
    ----------
    patience
        The minimum number of steps between two decisions.
    since
        The step of the latest decision; 0 before the first decision.
    change
        The difference between the latest and the first window's step times, as a share of the shorter time.
    """

    def __init__(self, config: AutoConfig = DEFAULT) -> None:
        self._config, self.patience = config, config.patience_steps
        self.since, self.change = 0, 0.0
        self._reference: StepTime | None = None

    def decided(self, step: int, *, keeps_reference: bool = False) -> None:
        """Start a new comparison after the decision before ``step``, and update the patience.

        ``keeps_reference`` says that the plan stays, so its step times are comparable.

        The patience doubles, or is reset if the steps since the previous decision were quiet.
        """
        if self.since:
            config = self._config
            quiet = step - self.since > self.patience + config.quiet_steps
            longer = min(2 * self.patience, config.most_patience_steps)
            self.patience = config.patience_steps if quiet else longer
        self.since = step
        if not keeps_reference:
            self.forget()

    def forget(self) -> None:
        """Make the next window the reference, because the plan and its step times have changed."""
        self._reference = None

    def may_decide(self, step: int, part: float = 1.0) -> bool:
        """Return whether the share ``part`` of the patience has passed since the latest decision."""
        return step - self.since >= part * self.patience

    def changed(self, step: int, now: StepTime) -> bool:
        """Return whether the step time of the window that ended before ``step`` requires a new decision.

        Only the whole step is compared: if threads share cores, time shifts between computing and waiting.
        """
        if self._reference is None:
            self._reference = now
            return False
        shorter_s, longer_s = sorted((self._reference.step_s, now.step_s))
        self.change = longer_s / shorter_s - 1 if shorter_s else inf
        if not self.may_decide(step):
            return False
        return longer_s > (1 + self._config.changed_step_share) * shorter_s
