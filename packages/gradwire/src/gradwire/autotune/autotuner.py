"""The state machine that chooses a run's plan between steps: measure, decide, try, watch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gradwire.autotune.contract import Contract, draw
from gradwire.autotune.costs import PacedWork, Work
from gradwire.autotune.decision import STAYS, Decision, Saved, State, fingerprint, same_way
from gradwire.autotune.sampler import BucketSampler
from gradwire.autotune.samples import Samples
from gradwire.autotune.settings import Auto, CandidateRules, terms_of
from gradwire.autotune.states import TRANSITIONS, Trial, TunerEvent, TunerState, Watch
from gradwire.autotune.steps import StepTime, StepTimes
from gradwire.autotune.survey import Findings, Survey
from gradwire.codecs import parse
from gradwire.log import LOG
from gradwire.machine import ThreadSeconds, thread_seconds
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import NULL_BUCKET, BetweenSteps, BucketObserver, PlanChooser, StepCost
from gradwire.sync.bucket.residual import AUTO
from gradwire.sync.flat.gradients import float_shape

if TYPE_CHECKING:
    from gradwire.sync.bucket.work import BucketWork
    from gradwire.sync.context import SyncContext

T = TypeVar("T")
_ROWS = {row.event: row for row in TRANSITIONS}


class Autotuner(PlanChooser):
    """The controller of one run's plans: rank 0 chooses plans for all ranks, from all ranks' measurements.

    Before each step, all ranks observe at most one ``TunerEvent``, and run its transition in ``TRANSITIONS``.
    The last methods of the class are the actions of transitions. No plans are tried up to the step
    ``settles_at``, because the times of these steps differ from the times of later steps. ``decisions`` has
    each decision with the first step of its plan.
    """

    def __init__(
        self,
        settings: Auto,
        rules: CandidateRules,
        parameters: Iterable[tuple[str, torch.Tensor]],
        clock: Callable[[], float] = perf_counter,
        settles_at: int = 0,
        spent: Callable[[], ThreadSeconds] = thread_seconds,
    ) -> None:
        self.decisions: list[tuple[int, Decision]] = []
        self.settles_at = settles_at
        self._settings, self._rules, self._config = settings, rules, settings.config
        every = dict(parameters)
        self._names = list(every)
        self._shapes = {name: float_shape(each) for name, each in every.items() if each.requires_grad}
        is_on_host = all(each.device.type == "cpu" for each in every.values())
        self._times = StepTimes(clock, self._config, spent if is_on_host else None)
        self._clock, self._watch = clock, Watch(self._config)
        self._state = TunerState.ALONE
        self._note: Callable[[int, Decision], None] = lambda _step, _decision: None
        self._samples: Samples | None = None  # this step's samples, if any
        self._from_file: Decision | None = None
        self._has_read = False  # whether ``prepare`` has read the file
        self._choosing: PacedWork[Trial | None] | None = None
        self._looking: PacedWork[Findings] | None = None
        self._is_urgent = True  # whether the present plan may be slow or break the contract
        self._is_kept = False  # whether the choice that has just ended keeps the present plan
        self._decide_at, self._delay = self._config.warm_up_steps + 1, 1
        self._steps, self._before = 0, 0  # steps begun, and steps of earlier processes
        self._chosen: Plan | None = None  # by the latest call of begin
        self._loaded: State | None = None
        self._is_loaded = False
        self._step, self._buckets = 0, 0  # the current step, and its buckets so far
        self._earlier: State | Decision | None = None  # of an earlier run, from rank 0
        self._trial = Trial(())
        self._found = Findings(StepTime(0.0, 0.0, 0.0))

    def connected(self, context: SyncContext) -> None:
        """Start a run on the ranks of ``context``."""
        self._rank, self._world = rank, world = context.rank, context.world
        self._hosts = context.link.hosts
        settings, rules = self._settings, self._rules.over(context.link, has_group=context.group is not None)
        key = fingerprint([*self._shapes.values()], world, rules.name)
        self._rules, self._saved = rules, Saved(settings, rules, self._names, key, tells=rank == 0)
        most_excepted = rules.most_excepted(self._config)
        self._contract = Contract(
            settings.max_lost_norm, world, config=self._config, most_excepted=most_excepted
        )
        self._timeout_s = context.begin_timeout_s
        self._survey = Survey(settings, rules, self._contract, rank, world, self._timeout_s)
        self._state = TunerState.START if world > 1 else TunerState.ALONE
        if context.ledger is not None:
            self._note = context.ledger.decided

    def prepare(self, sync: BetweenSteps) -> None:
        """Measure links, codecs, and frames, unless rank 0 already knows a plan. Raises ``ExchangeError``."""
        if self._state is TunerState.ALONE:
            return
        self._from_file = self._saved.load() if self._rank == 0 else None
        self._has_read = True
        knows, count = self._from_file is not None, sum(map(math.prod, self._shapes.values()))
        sync.exchange_now("measurements", lambda each: self._survey.prepare(each, count, knows_plan=knows))

    def begin(self, step: int, sync: BetweenSteps) -> Plan | None:
        """Return the plan to use from ``step`` on, or None to keep the present plan.

        A second call for the same step, for example after an out-of-memory error, exchanges nothing and
        returns the same plan, because other ranks may not repeat the step. Raises ``ExchangeError``.
        """
        if self._state is TunerState.ALONE:
            return None
        began = self._times.read()
        self._step = step + self._before
        if self._is_loaded:
            self._make(TunerEvent.LOADED)
        elif self._state is not TunerState.START and self._step == self._steps:
            self._make(TunerEvent.REPEATED)
            return self._chosen
        event = self._observe(sync)
        self._chosen = self._samples = None
        if event is not None:
            self._make(event)
        if self._state is TunerState.PROBE and self._step + 1 == self._decide_at and self._samples is None:
            self._make(TunerEvent.CHOICE_IS_NEXT)
        self._steps = self._step
        self._connect_lanes(sync)
        self._sample_for_look()
        self._times.leave_out_since(began)
        self._times.sharing = self._survey.sharing
        return self._chosen

    def bucket(self, work: BucketWork) -> BucketObserver:
        """Return the bucket's sampler if this step is sampled, else an observer that does nothing."""
        number, self._buckets = self._buckets, self._buckets + 1
        self._times.handed_over(work.tensor.numel())
        if self._samples is None or work.is_bypassed:
            return NULL_BUCKET
        part_nbytes = self._config.sampled_nbytes if self._rules.whole else None
        is_drawn = self._samples.drawn == number
        return BucketSampler(self._samples, work, self._shapes, drawn=is_drawn, part_nbytes=part_nbytes)

    def end(self, cost: StepCost) -> None:
        """Record the end of a step, when all its averages have arrived."""
        self._times.end(None if self._rules.overlaps else cost.wait_s)

    def leave_out(self, seconds: float) -> None:
        """Subtract ``seconds`` of other work from the current step's time."""
        self._times.leave_out(seconds)

    def state(self) -> dict[str, str]:
        """Return the state of the choice, as a field for checkpoints; call it between two steps."""
        if self._loaded is not None:  # no step has run since
            return {AUTO: self._loaded.to_json()}
        # A resumed run can't use the times of an unfinished trial, and chooses again.
        is_settled = self._trial.present is None and self._choosing is None
        decide_at = self._decide_at if is_settled else self._steps + 1
        counts = (self._world, self._steps, decide_at, self._watch.patience, self._watch.since)
        refused = sorted(map(str, self._contract.refused))
        decisions = self.decisions[-self._config.most_saved_decisions :]
        state = State(*counts, decisions, self._contract.seen, refused, terms_of(self._settings))
        return {AUTO: state.to_json()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state at the next step; all ranks load, and rank 0's state is used.

        A state without a choice, of a different number of ranks, or with a plan that the present settings
        don't allow is ignored, and the run measures again. Raises ``StateError``.
        """
        loaded = State.from_json(state[AUTO]) if AUTO in state else None
        fits = loaded is not None and loaded.world == self._world and self._saved.allows(loaded)
        self._loaded, self._is_loaded = loaded if fits else None, True

    @property
    def intention(self) -> str:
        """The words after the first plan in the run's first log line; empty for one rank."""
        return "" if self._state is TunerState.ALONE else "until a plan is chosen"

    @property
    def loaded_plan(self) -> Plan | None:
        """The next step's plan from the loaded checkpoint; None if the checkpoint contains no plan."""
        decisions = self._loaded.decisions if self._loaded else []
        return decisions[-1][1].plan if decisions else None

    def _make(self, event: TunerEvent) -> None:
        row, left = _ROWS[event], self._state
        getattr(self, row.action)()
        self._state = row.target or left
        if self._rank == 0:
            facts = {"step": self._step, "plans": len(self._trial.decisions), "turns": self._trial.turns}
            said = row.says.format(**facts, change=self._watch.change)
            names = left.value, self._state.value
            LOG.debug("autotune: transition %d, %s to %s: %s", row.number, *names, said)

    def _observe(self, sync: BetweenSteps) -> TunerEvent | None:
        """Make the measurement that is due on all ranks, if any, and return the event."""
        since, window = self._step - self._decide_at, self._config.window_steps
        if self._state is TunerState.START:
            return self._get_earlier(sync)
        if self._state is TunerState.PROBE and since >= 0:
            return self._choose(sync)
        if self._state is TunerState.TRIAL and since == self._trial.steps:
            self._trial.note(*self._survey.time_turn(sync, self._times))
            if self._trial.present is None:
                return TunerEvent.HAS_NO_TURN
            return TunerEvent.TURNS_BACK if self._trial.is_turning else TunerEvent.HAS_NEXT_TURN
        if self._state is TunerState.HOLD:
            is_due = since > 0 and since % window == 0 and len(self._times) > 0
            return self._look(sync, is_due=is_due)
        return None

    def _get_earlier(self, sync: BetweenSteps) -> TunerEvent:
        own = self._loaded or self._read() if self._rank == 0 else None
        earlier = self._earlier = self._survey.broadcast_earlier(sync, own)
        if isinstance(earlier, State):
            holds = earlier.decide_at <= earlier.steps
            return TunerEvent.HAS_CHECKPOINT if holds else TunerEvent.HAS_EARLY_CHECKPOINT
        return TunerEvent.KNOWS_NOTHING if earlier is None else TunerEvent.HAS_EARLIER_CHOICE

    def _read(self) -> Decision | None:
        """Return the decision in the file of an earlier run, which ``prepare`` may have read already."""
        found, self._from_file = self._from_file if self._has_read else self._saved.load(), None
        self._has_read = False
        return found

    def _choose(self, sync: BetweenSteps) -> TunerEvent | None:
        """Do this step's part of the choice. After the last part, store the trial, and return the event."""
        if self._choosing is None:
            work = self._survey.choose(self._samples, lambda: self._times.median, sync.context.plan)
            self._choosing = self._paced(work, urgent=self._is_urgent)
        if not self._choosing.advance(self._step, sync):
            return None
        found, self._choosing = self._choosing.result, None
        if found is None:
            return TunerEvent.LACKS_SAMPLES
        # Step times haven't changed if only the gradients have, so the present plan needs no comparison.
        self._is_kept = not self._is_urgent and same_way(found.decisions[0].plan, sync.context.plan)
        self._delay, is_alone = 1, self._is_kept or self._step <= self.settles_at
        self._trial = Trial(found.decisions[:1], config=self._config) if is_alone else found
        if STAYS in found.decisions[0].reason:
            return TunerEvent.FOUND_NO_PLAN
        return TunerEvent.FOUND_ONE_PLAN if self._trial.present is None else TunerEvent.FOUND_RIVALS

    def _look(self, sync: BetweenSteps, *, is_due: bool) -> TunerEvent | None:
        """Run this step's part of a check that is due or has begun. After the last part, return the event."""
        if self._looking is None and is_due:
            may_choose = self._watch.may_decide(self._step, self._config.early_share_of_patience)
            how = self._samples, lambda: self._times.median, sync.context.plan, self.decisions
            work = self._survey.look(*how, may_choose=may_choose)
            self._looking = self._paced(work, urgent=False)
            self._survey.has_broken = False
        if self._looking is not None and self._survey.has_broken:
            self._looking.hurry(self._step)
        if self._looking is None or not self._looking.advance(self._step, sync):
            return None
        self._found, self._looking = self._looking.result, None
        has_changed = self._watch.changed(self._step, self._found.times)
        return TunerEvent.STEP_TIME_CHANGED if has_changed else self._found.event

    def _paced(self, work: Work[T], *, urgent: bool) -> PacedWork[T]:
        how = self._step, self._times.median.step_s, self._timeout_s, self._clock, self._config
        return PacedWork(work, *how, urgent=urgent)

    def _connect_lanes(self, sync: BetweenSteps) -> None:
        """Connect the lanes of the chosen plan, or keep the present plan."""
        if self._chosen is not None and (why := sync.connect_lanes(self._chosen.lanes)):
            self._keep(sync.context.plan, why)

    def _sample_for_look(self) -> None:
        """Sample this step if the plan is checked against the contract before the next step."""
        buckets, self._buckets = self._buckets, 0
        since, config = self._step + 1 - self._decide_at, self._config
        is_due = since == config.window_steps or (since > 0 and since % config.resample_steps == 0)
        if is_due and self._state is TunerState.HOLD and self._looking is None:
            self._samples = self._no_samples(None if self._rules.whole else draw(self._step, buckets))

    def _no_samples(self, drawn: int | None = None) -> Samples:
        placed_for = self._world if self._rules.places else None
        return Samples(drawn=drawn, step=self._step, placed_for=placed_for, config=self._config)

    def _adopt(self, decision: Decision, why: str = "") -> None:
        if self._trial.present is None:
            self._watch.decided(self._step, keeps_reference=self._is_kept)
            self._is_kept = False
        # While a pipeline fills, steps don't wait for averages.
        self._times.forget(self._trial.settling + decision.plan.pipeline)
        self._contract.begin()
        self._take(decision, why)

    def _take(self, decision: Decision, why: str = "") -> None:
        self.decisions.append((self._step, decision))
        self._tell(decision, why)
        if STAYS not in decision.reason:  # the next run may be able to choose
            self._saved.save(decision if self._trial.present is None else self._trial.decisions[0])
        self._chosen = decision.plan

    def _keep(self, present: Plan, why: str) -> None:
        """Keep the present plan and its lanes, because the next plan's lanes can't be connected."""
        self._trial, self._state, self._survey.most_lanes = Trial(()), TunerState.HOLD, present.lanes
        reason = f"{present.codec} over {present.algorithm} {STAYS}: {why}"
        self._take(replace(self.decisions.pop()[1], plan=present, reason=reason))

    def _tell(self, decision: Decision, why: str) -> None:
        told = replace(decision, reason=why + decision.reason)
        if self._rank == 0:
            if self._trial.present is None:
                LOG.info("%s%s", why, decision.in_words(self._hosts))
            LOG.debug("from step %d on, %s", self._step, told.reason)
        self._note(self._step, told)

    # The actions of TRANSITIONS, in the order of its rows.

    def resume(self) -> None:
        """Continue with the checkpoint's plan; if a choice was due, make it after ``warm_up_steps``."""
        state = self._earlier
        assert isinstance(state, State)
        number = state.steps + 1  # continues the numbers of the checkpoint's run
        self._before, self._loaded = number - self._step, None
        self._step = number
        holds = state.decide_at < number
        self._decide_at = state.decide_at if holds else number + self._config.warm_up_steps
        self.decisions = list(state.decisions)
        self._watch.patience, self._watch.since = state.patience, state.since
        self._contract.seen, self._contract.refused = dict(state.seen), {*map(parse, state.refused)}
        self._times.forget()
        if self.decisions:
            self._tell(self.decisions[-1][1], "as before the checkpoint: ")
            self._chosen = self.decisions[-1][1].plan

    def adopt_earlier(self) -> None:
        """Use the plan of the earlier run."""
        assert isinstance(self._earlier, Decision)
        self._decide_at = self._step
        self._adopt(self._earlier, "as in an earlier run: ")

    def plan_choice(self) -> None:
        """Schedule the choice of a plan after ``warm_up_steps``."""
        self._decide_at = self._step + self._config.warm_up_steps

    def sample_all(self) -> None:
        """Sample all buckets of this step."""
        self._samples = self._no_samples()  # no comparison: no exchange has used a candidate yet

    def delay_choice(self) -> None:
        """Postpone the choice by 1 step, and double the delay each time, up to ``resample_steps``."""
        self._decide_at = self._step + self._delay
        self._delay = min(2 * self._delay, self._config.resample_steps)

    def adopt(self) -> None:
        """Use the plan whose turn it is in the trial, or the best plan without any further turn."""
        self._decide_at = self._step
        self._adopt(self._trial.present or self._trial.best())

    def measure_again(self) -> None:
        """Schedule a choice in the next step, with new measurements of the links."""
        self._decide_at, self._is_urgent = self._step + 1, True
        self._survey.forget_line()
        if self._found.event is TunerEvent.LEANER_SUITS:  # the check has measured only some codecs
            self._survey.forget_gradients()

    def adapt(self) -> None:
        """Use the parameters' new codecs, and make the next window the reference for step times."""
        self._take_gentler()
        self._times.forget()
        self._watch.forget()

    def adapt_and_choose(self) -> None:
        """Use the parameters' new codecs now, and schedule a choice in the next step."""
        self._take_gentler()
        self._decide_at, self._is_urgent = self._step + 1, False

    def choose_again(self) -> None:
        """Schedule a choice in the next step, with new samples of gradients."""
        self._decide_at = self._step + 1
        self._is_urgent = self._found.event is TunerEvent.PLAN_IS_UNSUITED
        if not self._is_urgent:  # the check has measured only some codecs
            self._survey.forget_gradients()

    def repeat(self) -> None:
        """Keep the plan, exchange nothing, and take the step's samples again."""
        self._samples, self._buckets = self._samples and self._no_samples(self._samples.drawn), 0
        self._times.restart()

    def forget(self) -> None:
        """Discard all measurements, and the trial, if any."""
        self._step, self._before, self._is_loaded = self._step - self._before, 0, False
        self._survey.forget_line()
        self._survey.forget_gradients()
        self._trial, self._choosing, self._looking = Trial(()), None, None
        self._watch, self._is_urgent, self._is_kept, self._delay = Watch(self._config), True, False, 1
        self._contract.begin()

    def _take_gentler(self) -> None:
        assert self._found.gentler is not None
        self._take(self._found.gentler)
