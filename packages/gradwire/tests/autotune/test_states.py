"""Every transition of an automatic choice: when its guard holds, what its action does, and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Auto, Plan
from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.costs import Together, Work
from gradwire.autotune.decision import STAYS, Decision, State
from gradwire.autotune.samples import Samples
from gradwire.autotune.settings import DEFAULT, whole
from gradwire.autotune.states import TRANSITIONS, Trial, TunerEvent, TunerState
from gradwire.autotune.steps import StepTime
from gradwire.autotune.survey import Findings
from gradwire.sync.bucket.observe import StepCost
from support.told_line import WARM_UP, WINDOW

FIRST = WARM_UP + 1
LOOK = FIRST + WINDOW
BEST = Decision(Plan.of("quantize:8", residual=False), 0.5, 1.0, 0.1, "the best", nbytes=1e6)
RIVAL = replace(BEST, plan=Plan.of("bf16", residual=False), reason="the rival", nbytes=2e6)
MIXED = Plan.of("quantize:8", residual=False, codecs=[{"match": "a", "codec": "bf16"}])
GENTLER = replace(BEST, plan=MIXED, reason="gentler")
STATE = State(2, 30, 26, 120, 6, [(6, BEST)], {"a": 0.1}, ["bf16"])
TIMES, SLOWER = StepTime(0.5, 0.0, 0.5), StepTime(0.5, 0.0, 1.5)
MANY = Findings(TIMES, TunerEvent.MANY_NEED_OTHERS, GENTLER)
LEANER = Findings(TIMES, TunerEvent.LEANER_SUITS)


NOTHING = Together("nothing", lambda _exchange: None)
"""An exchange in which a test says what all ranks find."""


class Told:
    """A survey in which all ranks observe what a test says."""

    sharing = None

    def __init__(self) -> None:
        self.earlier: State | Decision | None = None
        self.decisions: Sequence[Decision] = (BEST,)
        self.found = Findings(TIMES)
        self.took_s = [0.5]
        self.forgotten: list[str] = []

    def broadcast_earlier(self, *_: object) -> State | Decision | None:
        return self.earlier

    def choose(self, _samples: object, _now: object, present: Plan) -> Work[Trial | None]:
        yield NOTHING
        return Trial(self.decisions, present) if self.decisions else None

    def time_turn(self, *_: object) -> tuple[float, float]:
        return self.took_s.pop(0), 0.0

    def look(self, *_: object, **__: object) -> Work[Findings]:
        yield NOTHING
        return self.found

    def forget_line(self) -> None:
        self.forgotten.append("line")

    def forget_gradients(self) -> None:
        self.forgotten.append("gradients")


class Driven:
    """Rank 0's tuner in a run of two ranks, which takes a step each second."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now, self.number, self.told = 0.0, 0, Told()
        self.tuner = self.connected(2)
        vars(self.tuner)["_survey"] = self.told
        self.plan, self._caplog = Auto().first_plan, caplog

    def connected(self, world: int) -> Autotuner:
        context: Any = SimpleNamespace(rank=0, world=world, begin_timeout_s=1.0, ledger=None, group=None)
        context.link = SimpleNamespace(HAS_ALL_REDUCE=True, hosts=2)
        rules = whole(1)  # all of a step's waiting is in its cost
        tuner = Autotuner(Auto(), rules, [("a", nn.Parameter(torch.zeros(4)))], lambda: self.now)
        tuner.connected(context)
        return tuner

    def to(self, step: int) -> Driven:
        while self.number < step:
            self.number += 1
            self.begin()
            self.now += 1.0
            self.tuner.end(StepCost(self.number, 0.5))
        return self

    def begin(self) -> Plan | None:
        sync: Any = SimpleNamespace(exchange_now=_exchange_nothing, connect_lanes=lambda _: "")
        sync.context = SimpleNamespace(plan=self.plan)
        chosen = self.tuner.begin(self.number, sync)
        self.plan = chosen or self.plan
        return chosen

    @property
    def made(self) -> list[tuple[int, str]]:
        """The numbers and the sentences of the transitions so far."""
        head, found = "autotune: transition ", [each.getMessage() for each in self._caplog.records]
        parts = [each.removeprefix(head).partition(", ") for each in found if each.startswith(head)]
        return [(int(number), said) for number, _, said in parts]

    @property
    def state(self) -> TunerState:
        return self.tuner._state

    @property
    def saved(self) -> State:
        return State.from_json(self.tuner.state()["auto"])

    @property
    def samples(self) -> Samples | None:
        return self.tuner._samples

    @property
    def decide_at(self) -> int:
        return self.tuner._decide_at


def _exchange_nothing(what: str, call: Callable[[Any], Any]) -> None:
    assert call is NOTHING.call, f"{what} is exchanged"


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Driven:
    monkeypatch.delenv("GRADWIRE_AUTO", raising=False)
    caplog.set_level(logging.DEBUG, "gradwire")
    return Driven(caplog)


def test_rows_are_numbered_and_each_event_leads_to_one() -> None:
    assert [each.number for each in TRANSITIONS] == [*range(1, 20)]
    assert sorted(each.event.name for each in TRANSITIONS) == sorted(each.name for each in TunerEvent)
    for each in TRANSITIONS:
        assert getattr(Autotuner, each.action).__doc__
    left = {each.source for each in TRANSITIONS}
    assert left == {*TunerState, None} - {TunerState.ALONE}


def test_one_rank_alone_makes_no_transition(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gradwire")
    run = Driven(caplog)
    run.tuner = run.connected(1)
    run.to(2 * WINDOW)
    assert (run.state, run.made) == (TunerState.ALONE, [])


def test_1_a_checkpoint_whose_choice_holds_goes_on(run: Driven) -> None:
    run.told.earlier = STATE
    run.to(1)
    assert run.made == [(1, "start to hold: the checkpoint's plan continues")]
    assert (run.plan, run.decide_at, run.tuner.decisions) == (BEST.plan, 26, STATE.decisions)
    later = run.saved
    assert (later.steps, later.patience, later.since) == (31, 120, 6)
    assert (later.seen, later.refused) == ({"a": 0.1}, ["bf16"])


def test_2_a_checkpoint_before_a_choice_measures_for_it(run: Driven) -> None:
    run.told.earlier = replace(STATE, decide_at=31)
    run.to(1)
    assert run.made == [(2, "start to probe: the checkpoint has a pending choice")]
    assert (run.plan, run.decide_at) == (BEST.plan, 31 + WARM_UP), "it keeps the plan until then"


def test_3_the_choice_of_an_earlier_run_is_adopted(run: Driven) -> None:
    run.told.earlier = BEST
    run.to(1)
    assert run.made == [(3, "start to hold: an earlier run has chosen a plan")]
    assert (run.plan, run.decide_at, run.tuner.decisions) == (BEST.plan, 1, [(1, BEST)])


def test_4_a_run_without_any_chooses_after_the_first_steps(run: Driven) -> None:
    run.to(1)
    assert run.made == [(4, "start to probe: no usable checkpoint or earlier decision")]
    assert (run.decide_at, run.tuner.decisions) == (FIRST, [])


def test_5_the_step_before_a_choice_is_sampled(run: Driven) -> None:
    assert run.to(WARM_UP - 1).samples is None
    run.to(WARM_UP)
    assert run.made[1:] == [(5, "probe to probe: the next step chooses a plan")]
    samples = run.samples
    assert samples is not None
    assert samples.drawn is None


def test_6_without_samples_the_choice_is_delayed_longer_and_longer(run: Driven) -> None:
    run.told.decisions = ()
    run.to(FIRST)
    assert run.made[2:] == [
        (6, "probe to probe: a sample is missing or not finite"),
        (5, "probe to probe: the next step chooses a plan"),
    ]
    assert run.decide_at == FIRST + 1
    run.to(FIRST + 1)
    assert run.decide_at == FIRST + 3
    assert run.samples is None


def test_7_where_nothing_can_be_chosen_the_plan_stays(run: Driven) -> None:
    before = run.plan
    run.told.decisions = [Decision(before, 1.0, 1.0, 0.5, f"fp8 over ring {STAYS}: why")]
    run.to(FIRST)
    assert run.made[2:] == [(7, "probe to hold: no plan could be chosen")]
    assert (run.plan, run.tuner.decisions[0][0]) == (before, FIRST)


def test_7_a_choice_that_failed_is_not_saved_for_the_next_run(
    run: Driven, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADWIRE_AUTO", str(tmp_path / "auto.json"))
    failed = Decision(run.plan, 1.0, 1.0, 0.5, f"fp8 over ring {STAYS}: why")
    for decision, is_saved in ((failed, False), (BEST, True)):
        one = Driven(caplog)
        one.told.decisions = [decision]
        one.to(FIRST)
        assert (tmp_path / "auto.json").exists() == is_saved


def test_8_the_only_plan_is_adopted(run: Driven) -> None:
    run.to(FIRST)
    assert run.made[2:] == [(8, "probe to hold: one plan is expected to be the best")]
    assert (run.plan, run.tuner.decisions) == (BEST.plan, [(FIRST, BEST)])
    assert run.saved.since == FIRST


def test_8_while_steps_settle_no_plan_is_tried(run: Driven) -> None:
    run.told.decisions, run.tuner.settles_at = (BEST, RIVAL), FIRST
    run.to(FIRST)
    assert [number for number, _ in run.made] == [4, 5, 8]


@pytest.mark.parametrize(
    ("best", "numbers"), [(BEST, [15, 5, 8]), (RIVAL, [15, 5, 9])], ids=["the present plan", "another"]
)
def test_8_a_plan_that_stays_when_only_gradients_change_is_not_tried_again(
    run: Driven, best: Decision, numbers: list[int]
) -> None:
    run.told.found = replace(MANY, gentler=BEST)
    run.to(LOOK)
    run.told.decisions = (best, RIVAL if best is BEST else BEST)
    run.to(LOOK + 1)
    assert [number for number, _ in run.made[3:]] == numbers


def test_9_to_12_rivals_have_their_turns_and_the_fastest_stays(run: Driven) -> None:
    run.told.decisions, run.told.took_s = (BEST, RIVAL), [0.45, 0.4, 0.4, 0.45]
    run.to(FIRST)
    assert run.made[2:] == [(9, "probe to trial: 2 plans may be the best")]
    assert (run.plan, run.saved.since) == (BEST.plan, 0), "nothing is decided yet"
    turn = DEFAULT.turn_steps
    plans = []
    for end in (FIRST + 2 * turn, FIRST + 3 * turn, FIRST + 4 * turn, FIRST + 5 * turn):
        run.to(end)
        plans.append(run.plan)
    assert run.made[3:] == [
        (10, "trial to trial: turns completed: 1"),
        (11, "trial to trial: every plan has had its first turn"),
        (10, "trial to trial: turns completed: 3"),
        (12, "trial to hold: all turns completed: 4"),
    ]
    assert plans == [RIVAL.plan, RIVAL.plan, BEST.plan, RIVAL.plan]
    assert run.saved.since == run.decide_at == FIRST + 5 * turn


def test_13_another_step_time_asks_for_another_choice_once_patience_has_passed(run: Driven) -> None:
    run.to(FIRST + WINDOW)  # the first window
    run.told.found = Findings(SLOWER)
    due = FIRST + DEFAULT.patience_steps
    run.to(due - 1)
    assert run.state is TunerState.HOLD
    run.to(due)
    assert run.made[3:] == [
        (13, "hold to probe: step time changed by 100%"),
        (5, "probe to probe: the next step chooses a plan"),
    ]
    assert (run.decide_at, run.told.forgotten) == (due + 1, ["line"])


@pytest.mark.parametrize(
    ("event", "forgotten"),
    [
        (TunerEvent.LEANER_SUITS, ["line", "gradients"]),
        (TunerEvent.SOME_NEED_OTHERS, ["line"]),  # the check has measured all codecs
    ],
)
def test_13_new_step_times_and_new_gradients_measure_what_the_check_has_not(
    run: Driven, event: TunerEvent, forgotten: list[str]
) -> None:
    run.to(FIRST + WINDOW)
    run.told.found = Findings(SLOWER, event, GENTLER)
    vars(run.tuner)["_watch"].patience = WINDOW
    run.to(FIRST + 2 * WINDOW)
    assert [number for number, _ in run.made[3:]] == [13, 5]
    assert (run.plan, run.told.forgotten) == (BEST.plan, forgotten)


def test_14_parameters_get_other_codecs_at_once(run: Driven) -> None:
    run.told.found = Findings(TIMES, TunerEvent.SOME_NEED_OTHERS, GENTLER)
    run.to(LOOK)
    assert run.made[3:] == [(14, "hold to hold: some parameters need other codecs")]
    assert (run.plan, run.decide_at, run.told.forgotten) == (GENTLER.plan, FIRST, [])
    assert len(vars(run.tuner)["_times"]) == 0, "the next window is the first one of this plan"


@pytest.mark.parametrize(
    ("found", "number", "said", "forgotten", "urgent"),
    [
        (MANY, 15, "many values need a more precise codec", [], False),
        (Findings(TIMES, TunerEvent.PLAN_IS_UNSUITED), 16, "the codec breaks the contract", [], True),
        (LEANER, 17, "a smaller codec meets the contract", ["gradients"], False),
    ],
)
def test_15_to_17_gradients_ask_for_another_choice(
    run: Driven, found: Findings, number: int, said: str, forgotten: list[str], *, urgent: bool
) -> None:
    run.told.found = found
    run.to(LOOK)
    assert run.made[3:] == [
        (number, f"hold to probe: {said}"),
        (5, "probe to probe: the next step chooses a plan"),
    ]
    assert run.plan == (BEST if found.gentler is None else found.gentler).plan
    assert (run.decide_at, run.told.forgotten) == (LOOK + 1, forgotten), "the line is what it was"
    assert vars(run.tuner)["_is_urgent"] == urgent


def test_18_a_repeated_step_keeps_its_plan(run: Driven) -> None:
    run.to(WARM_UP)
    samples = run.samples
    assert samples is not None
    samples.expect([(3,)], ["of the first attempt"])
    assert run.begin() is None
    samples = run.samples
    assert samples is not None
    assert samples.names == []
    run.to(FIRST)
    assert run.begin() == BEST.plan
    assert [number for number, _ in run.made] == [4, 5, 18, 8, 18]
    assert run.made[-1][1] == f"hold to hold: step {FIRST} is repeated"
    assert len(run.tuner.decisions) == 1


def test_19_a_loaded_checkpoint_starts_the_run_again(run: Driven) -> None:
    run.to(FIRST)
    run.tuner.load({"auto": STATE.to_json()})
    assert run.saved == STATE
    assert run.tuner.loaded_plan == BEST.plan
    run.told.earlier = STATE
    run.to(FIRST + 1)
    assert run.made[3:] == [
        (19, "hold to start: a checkpoint was loaded"),
        (1, "start to hold: the checkpoint's plan continues"),
    ]
    assert run.told.forgotten == ["line", "gradients"]
    assert run.saved.steps == STATE.steps + 1


@pytest.mark.parametrize("state", [{"auto": replace(STATE, world=3).to_json()}, {}], ids=["other", "none"])
def test_19_a_run_that_loads_no_usable_choice_begins_as_a_new_one(run: Driven, state: dict[str, str]) -> None:
    run.told.found = MANY
    run.to(LOOK)
    run.tuner.load(state)
    run.told.decisions = (GENTLER, RIVAL)
    run.to(LOOK + 1 + WARM_UP)
    assert [number for number, _ in run.made[5:]] == [19, 4, 5, 9], "rivals are tried"


def test_a_checkpoint_has_a_limited_number_of_decisions(run: Driven) -> None:
    run.to(FIRST)
    run.tuner.decisions += [(FIRST + i, BEST) for i in range(1000)]
    assert len(run.saved.decisions) < 100
    assert run.saved.decisions[-1] == run.tuner.decisions[-1]
