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


@dataclass(frozen=True)
class Transition:
    """One row of the table.

    Attributes
    ----------
    number
        The row's number, which log lines name.
    source
        The state that it leaves; None for any state.
    guard
        The method of ``Autotuner`` that returns whether the row applies; all ranks return the same.
    action
        The method of ``Autotuner`` that does what follows.
    target
        The state that it enters; None for the present one.
    says
        The log line's reason, with the names of facts in braces.
    """

    number: int
    source: TunerState | None
    guard: str
    action: str
    target: TunerState | None
    says: str


START, PROBE, TRIAL, HOLD = TunerState.START, TunerState.PROBE, TunerState.TRIAL, TunerState.HOLD
TRANSITIONS = (
    Transition(1, START, "checkpoint_holds", "resume", HOLD, "the checkpoint's choice goes on"),
    Transition(2, START, "has_checkpoint", "resume", PROBE, "the checkpoint's next choice was due"),
    Transition(3, START, "has_earlier_choice", "adopt_earlier", HOLD, "an earlier run has chosen a plan"),
    Transition(4, START, "knows_nothing", "plan_choice", PROBE, "nothing is known of this run"),
    Transition(5, PROBE, "precedes_choice", "sample_all", PROBE, "the next step chooses a plan"),
    Transition(6, PROBE, "lacks_samples", "delay_choice", PROBE, "a sample is empty or not finite"),
    Transition(7, PROBE, "failed_to_choose", "adopt", HOLD, "no plan could be chosen"),
    Transition(8, PROBE, "has_one_plan", "adopt", HOLD, "one plan is expected to be the best"),
    Transition(9, PROBE, "has_rivals", "adopt", TRIAL, "{plans} plans may be as good"),
    Transition(10, TRIAL, "has_next_turn", "take_turn", TRIAL, "{turns} turns are over"),
    Transition(11, TRIAL, "turns_back", "take_turn", TRIAL, "every plan had its first turn"),
    Transition(12, TRIAL, "has_no_turn", "take_turn", HOLD, "all {turns} turns are over"),
    Transition(13, HOLD, "step_time_changed", "measure_again", PROBE, "step time changed by {change:.0%}"),
    Transition(14, HOLD, "some_need_others", "adapt", HOLD, "parameters need other codecs than before"),
    Transition(15, HOLD, "many_need_others", "adapt_and_choose", PROBE, "many values need a gentler codec"),
    Transition(16, HOLD, "plan_is_unsuited", "choose_again", PROBE, "the codec suits too few values"),
    Transition(17, HOLD, "leaner_codec_suits", "choose_again", PROBE, "a leaner codec suits by now"),
    Transition(18, None, "is_repeated", "repeat", None, "step {step} is taken once more"),
    Transition(19, None, "was_loaded", "forget", START, "a checkpoint was loaded"),
)
"""All transitions. The rows for any state are evaluated first, then the present state's, in this order."""
