"""The states of an automatic choice, and the table of transitions that the ``Autotuner`` evaluates."""

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
    """An observation of all ranks before a step; the values are the conditions of the table."""

    REPEATED = "the latest step begins again"
    LOADED = "a checkpoint was loaded since the latest step"
    HAS_CHECKPOINT = "rank 0 has a checkpoint, and no choice was due when it was written"
    HAS_EARLY_CHECKPOINT = "rank 0 has a checkpoint, and a choice was due"
    HAS_EARLIER_CHOICE = "the file of decisions has one of this run's kind that the settings allow"
    KNOWS_NOTHING = "no other row applies"
    CHOICE_IS_NEXT = "a plan is to be chosen before the next step, and this one isn't sampled yet"
    LACKS_SAMPLES = "a choice is due, and a rank's sample is missing or not finite"
    FOUND_NO_PLAN = "rank 0 could not predict what plans take"
    FOUND_ONE_PLAN = "no other plan may be as good, or steps don't take their usual time yet"
    FOUND_RIVALS = "several plans may be the best"
    HAS_NEXT_TURN = "a turn is over, and another one of the same round follows"
    TURNS_BACK = "all plans had their first turn, and more than one isn't behind"
    HAS_NO_TURN = "the last turn is over"
    STEP_TIME_CHANGED = "steps differ by ``changed_step_share`` from the first window, past the patience"
    SOME_NEED_OTHERS = "other parameters than before break the contract, or keep it again"
    MANY_NEED_OTHERS = "over ``wide_share`` of the values newly break it, and some patience has passed"
    PLAN_IS_UNSUITED = "over ``most_excepted_share`` break it, or the codec is no candidate"
    LEANER_SUITS = "a codec that was left out keeps it with room, and sends under ``far_less_share``"


@dataclass(frozen=True)
class Transition:
    """One row of the table.

    Attributes
    ----------
    number
        The row's number, which log lines name.
    source
        The state that it leaves; None for any state.
    event
        The observation that leads from it.
    action
        The method of ``Autotuner`` that does what follows.
    target
        The state that it enters; None for the present one.
    says
        The log line's reason, with the names of facts in braces.
    """

    number: int
    source: TunerState | None
    event: TunerEvent
    action: str
    target: TunerState | None
    says: str


START, PROBE, TRIAL, HOLD = TunerState.START, TunerState.PROBE, TunerState.TRIAL, TunerState.HOLD
TRANSITIONS = (
    Transition(1, START, TunerEvent.HAS_CHECKPOINT, "resume", HOLD, "the checkpoint's choice goes on"),
    Transition(
        2, START, TunerEvent.HAS_EARLY_CHECKPOINT, "resume", PROBE, "the checkpoint's next choice was due"
    ),
    Transition(
        3, START, TunerEvent.HAS_EARLIER_CHOICE, "adopt_earlier", HOLD, "an earlier run has chosen a plan"
    ),
    Transition(4, START, TunerEvent.KNOWS_NOTHING, "plan_choice", PROBE, "nothing is known of this run"),
    Transition(5, PROBE, TunerEvent.CHOICE_IS_NEXT, "sample_all", PROBE, "the next step chooses a plan"),
    Transition(6, PROBE, TunerEvent.LACKS_SAMPLES, "delay_choice", PROBE, "a sample is empty or not finite"),
    Transition(7, PROBE, TunerEvent.FOUND_NO_PLAN, "adopt", HOLD, "no plan could be chosen"),
    Transition(8, PROBE, TunerEvent.FOUND_ONE_PLAN, "adopt", HOLD, "one plan is expected to be the best"),
    Transition(9, PROBE, TunerEvent.FOUND_RIVALS, "adopt", TRIAL, "{plans} plans may be as good"),
    Transition(10, TRIAL, TunerEvent.HAS_NEXT_TURN, "take_turn", TRIAL, "{turns} turns are over"),
    Transition(11, TRIAL, TunerEvent.TURNS_BACK, "take_turn", TRIAL, "every plan had its first turn"),
    Transition(12, TRIAL, TunerEvent.HAS_NO_TURN, "take_turn", HOLD, "all {turns} turns are over"),
    Transition(
        13, HOLD, TunerEvent.STEP_TIME_CHANGED, "measure_again", PROBE, "step time changed by {change:.0%}"
    ),
    Transition(
        14, HOLD, TunerEvent.SOME_NEED_OTHERS, "adapt", HOLD, "parameters need other codecs than before"
    ),
    Transition(
        15, HOLD, TunerEvent.MANY_NEED_OTHERS, "adapt_and_choose", PROBE, "many values need a gentler codec"
    ),
    Transition(
        16, HOLD, TunerEvent.PLAN_IS_UNSUITED, "choose_again", PROBE, "the codec suits too few values"
    ),
    Transition(17, HOLD, TunerEvent.LEANER_SUITS, "choose_again", PROBE, "a leaner codec suits by now"),
    Transition(18, None, TunerEvent.REPEATED, "repeat", None, "step {step} is taken once more"),
    Transition(19, None, TunerEvent.LOADED, "forget", START, "a checkpoint was loaded"),
)
"""All transitions; an event leads to one row."""
