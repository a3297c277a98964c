"""The states of an automatic choice, and the transition table of the ``Autotuner``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TunerState(Enum):
    """The state of a run's choice between two steps."""

    ALONE = "alone"
    START = "start"
    PROBE = "probe"
    TRIAL = "trial"
    HOLD = "hold"


class TunerEvent(Enum):
    """An event that all ranks observe before a step. Its value is the condition in the table."""

    REPEATED = "the latest step is repeated"
    LOADED = "a checkpoint was loaded since the latest step"
    HAS_CHECKPOINT = "rank 0 has a checkpoint that was written while no choice was due"
    HAS_EARLY_CHECKPOINT = "rank 0 has a checkpoint that was written while a choice was due"
    HAS_EARLIER_CHOICE = "the file of decisions has one for this run that the settings allow"
    KNOWS_NOTHING = "rank 0 has no usable checkpoint or earlier decision"
    CHOICE_IS_NEXT = "a choice is due before the next step, and this step isn't sampled yet"
    LACKS_SAMPLES = "a choice is due, and a rank's sample is missing or not finite"
    FOUND_NO_PLAN = "rank 0 could not predict the step times of plans"
    FOUND_ONE_PLAN = "no other plan may be as good, or step times aren't steady yet"
    FOUND_RIVALS = "several plans may be the best"
    HAS_NEXT_TURN = "a turn is over, and another turn in the same direction follows"
    TURNS_BACK = "all plans have had their first turn, and more than one is fast enough for a second"
    HAS_NO_TURN = "the last turn is over"
    STEP_TIME_CHANGED = "the step time has changed by ``changed_step_share``, and the patience has passed"
    SOME_NEED_OTHERS = "some parameters newly break the contract, or meet it again"
    MANY_NEED_OTHERS = "parameters with over ``wide_share`` of the values newly break it, past some patience"
    PLAN_IS_UNSUITED = "over ``most_excepted_share`` break it, or the codec isn't a candidate"
    LEANER_SUITS = "a rejected codec now meets it with a margin, and sends under ``far_less_share``"


@dataclass(frozen=True)
class Transition:
    """One row of the transition table.

    Attributes
    ----------
    number
        The row's number in log lines.
    source
        The state before the transition; None for any state.
    event
        The event that triggers it.
    action
        The name of the ``Autotuner`` method that it calls.
    target
        The state after the transition; None for the same state.
    says
        The reason in the log line, as a format string.
    """

    number: int
    source: TunerState | None
    event: TunerEvent
    action: str
    target: TunerState | None
    says: str


START, PROBE, TRIAL, HOLD = TunerState.START, TunerState.PROBE, TunerState.TRIAL, TunerState.HOLD
TRANSITIONS = (
    Transition(1, START, TunerEvent.HAS_CHECKPOINT, "resume", HOLD, "the checkpoint's plan continues"),
    Transition(
        2, START, TunerEvent.HAS_EARLY_CHECKPOINT, "resume", PROBE, "the checkpoint has a pending choice"
    ),
    Transition(
        3, START, TunerEvent.HAS_EARLIER_CHOICE, "adopt_earlier", HOLD, "an earlier run has chosen a plan"
    ),
    Transition(
        4, START, TunerEvent.KNOWS_NOTHING, "plan_choice", PROBE, "no usable checkpoint or earlier decision"
    ),
    Transition(5, PROBE, TunerEvent.CHOICE_IS_NEXT, "sample_all", PROBE, "the next step chooses a plan"),
    Transition(
        6, PROBE, TunerEvent.LACKS_SAMPLES, "delay_choice", PROBE, "a sample is missing or not finite"
    ),
    Transition(7, PROBE, TunerEvent.FOUND_NO_PLAN, "adopt", HOLD, "no plan could be chosen"),
    Transition(8, PROBE, TunerEvent.FOUND_ONE_PLAN, "adopt", HOLD, "one plan is expected to be the best"),
    Transition(9, PROBE, TunerEvent.FOUND_RIVALS, "adopt", TRIAL, "{plans} plans may be the best"),
    Transition(10, TRIAL, TunerEvent.HAS_NEXT_TURN, "take_turn", TRIAL, "turns completed: {turns}"),
    Transition(11, TRIAL, TunerEvent.TURNS_BACK, "take_turn", TRIAL, "every plan has had its first turn"),
    Transition(12, TRIAL, TunerEvent.HAS_NO_TURN, "take_turn", HOLD, "all turns completed: {turns}"),
    Transition(
        13, HOLD, TunerEvent.STEP_TIME_CHANGED, "measure_again", PROBE, "step time changed by {change:.0%}"
    ),
    Transition(14, HOLD, TunerEvent.SOME_NEED_OTHERS, "adapt", HOLD, "some parameters need other codecs"),
    Transition(
        15,
        HOLD,
        TunerEvent.MANY_NEED_OTHERS,
        "adapt_and_choose",
        PROBE,
        "many values need a more precise codec",
    ),
    Transition(16, HOLD, TunerEvent.PLAN_IS_UNSUITED, "choose_again", PROBE, "the codec breaks the contract"),
    Transition(
        17, HOLD, TunerEvent.LEANER_SUITS, "choose_again", PROBE, "a smaller codec meets the contract"
    ),
    Transition(18, None, TunerEvent.REPEATED, "repeat", None, "step {step} is repeated"),
    Transition(19, None, TunerEvent.LOADED, "forget", START, "a checkpoint was loaded"),
)
"""All transitions, one for each event."""
