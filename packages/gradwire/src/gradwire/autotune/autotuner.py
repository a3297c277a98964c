"""The state machine that chooses a run's plan from step to step: measure, decide, try, watch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gradwire.autotune import saved
from gradwire.autotune.contract import Contract, draw
from gradwire.autotune.decision import Decision
from gradwire.autotune.rules import CandidateRules
from gradwire.autotune.samples import BucketSampler, Samples
from gradwire.autotune.saved import Saved, State
from gradwire.autotune.settings import Auto, terms_of
from gradwire.autotune.states import TRANSITIONS, TunerEvent, TunerState
from gradwire.autotune.step_times import StepTime, StepTimes
from gradwire.autotune.survey import STAYS, Findings, Survey
from gradwire.autotune.trial import Trial
from gradwire.autotune.watch import Watch
from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire.sync.buckets import float_shape
from gradwire.sync.observe import NULL_BUCKET, BetweenSteps, BucketObserver, PlanChooser, StepCost
from gradwire.sync.residual import AUTO

if TYPE_CHECKING:
    from gradwire.sync.context import SyncContext
    from gradwire.sync.work import BucketWork

_LOG = logging.getLogger("gradwire")
_ROWS = {row.event: row for row in TRANSITIONS}


class Autotuner(PlanChooser):
    """Chooses one run's plans, on all ranks alike: what rank 0 decides from the measurements of all of them.

    Before each step, all ranks observe one ``TunerEvent`` or none, and make its transition (``TRANSITIONS``).
    The actions are the last methods of the class.

    ``parameters`` are all of the model's, with their names. Up to the step ``settles_at``, steps take another
    time than later, so no plans are tried.

    Attributes
    ----------
    decisions
        The steps before which plans were chosen, and the decisions.
    """

    def __init__(
        self,
        settings: Auto,
        rules: CandidateRules,
        parameters: Iterable[tuple[str, torch.Tensor]],
        clock: Callable[[], float] = perf_counter,
        settles_at: int = 0,
    ) -> None:
        self.decisions: list[tuple[int, Decision]] = []
        self.settles_at = settles_at
        self._settings, self._rules, self._config = settings, rules, settings.config
        every = dict(parameters)
        self._names = list(every)
        self._shapes = {name: float_shape(each) for name, each in every.items() if each.requires_grad}
        self._clock, self._times, self._watch = clock, StepTimes(clock, self._config), Watch(self._config)
        self._state = TunerState.ALONE
        self._note: Callable[[int, Decision], None] = lambda _step, _decision: None
        self._samples: Samples | None = None  # of this step, if it is sampled
        self._decide_at, self._delay = self._config.warm_up_steps + 1, 1
        self._steps, self._before = 0, 0  # begun, and those of the process that wrote the checkpoint
        self._chosen: Plan | None = None  # in the latest step
        self._loaded: State | None = None
        self._is_loaded = False
        self._step, self._buckets = 0, 0  # the step under way, and its buckets so far
        self._earlier: State | Decision | None = None  # what all ranks have observed before it
        self._trial = Trial(())
        self._found = Findings(StepTime(0.0, 0.0, 0.0))

    def connected(self, context: SyncContext) -> None:
        """Begin a run of the context's ranks."""
        self._rank, self._world = rank, world = context.rank, context.world
        settings, rules = self._settings, self._rules.over(context.link)
        key = saved.fingerprint([*self._shapes.values()], world, rules.name)
        self._rules, self._saved = rules, Saved(settings, rules, self._names, key, tells=rank == 0)
        self._contract = Contract(settings.max_lost_norm, world, config=self._config)
        self._contract.most_excepted = rules.most_excepted(self._config)
        self._survey = Survey(settings, rules, self._contract, world, context.begin_timeout_s)
        self._state = TunerState.START if world > 1 else TunerState.ALONE
        if context.ledger is not None:
            self._note = context.ledger.decided

    def begin(self, step: int, sync: BetweenSteps) -> Plan | None:
        """Return the plan from ``step`` on, or None where the present one stays.

        Another call for a step that is retried, because the script ran out of memory, say, exchanges nothing
        and returns the same: other ranks may not retry it. Raises ``ExchangeError``.
        """
        if self._state is TunerState.ALONE:
            return None
        began = self._clock()
        self._step = step + self._before
        if self._is_loaded:
            self._make(TunerEvent.LOADED)
        elif self._state is not TunerState.START and self._step == self._steps:
            self._make(TunerEvent.REPEATED)
            return self._chosen
        event = self._observe(sync)
        self._chosen = self._samples = None
        while event is not None or self._choice_is_next():
            self._make(event or TunerEvent.CHOICE_IS_NEXT)
            event = None
        self._steps = self._step
        self._sample_for_look()
        self._times.leave_out(self._clock() - began)
        return self._chosen

    def bucket(self, work: BucketWork) -> BucketObserver:
        """Return the sampler of a bucket in a step that is sampled."""
        number, self._buckets = self._buckets, self._buckets + 1
        self._times.handed_over(work.tensor.numel())
        if self._samples is None or work.is_bypassed:
            return NULL_BUCKET
        part_nbytes = self._config.sampled_nbytes if self._rules.whole else None
        is_drawn = self._samples.drawn == number
        return BucketSampler(self._samples, work, self._shapes, drawn=is_drawn, part_nbytes=part_nbytes)

    def end(self, cost: StepCost) -> None:
        """Note that a step's averages are all there."""
        self._times.end(None if self._rules.overlaps else cost.wait_s)

    def state(self) -> dict[str, str]:
        """Return the field of a checkpoint for the choice; call it between two steps."""
        if self._loaded is not None:  # and no step was taken since
            return {AUTO: self._loaded.to_json()}
        # What steps took with plans on trial is of no use to another run, which has to decide anew.
        decide_at = self._decide_at if self._trial.present is None else self._steps + 1
        counts = (self._world, self._steps, decide_at, self._watch.patience, self._watch.since)
        refused = sorted(map(str, self._contract.refused))
        state = State(*counts, self.decisions, self._contract.seen, refused, terms_of(self._settings))
        return {AUTO: state.to_json()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was called, from the next step on; all ranks load, and rank 0's counts.

        The state of another number of ranks is left out, and so is one that the present settings don't allow:
        the run measures anew. Raises ``StateError``.
        """
        if AUTO in state:
            loaded = State.from_json(state[AUTO])
            fits = loaded.world == self._world and self._saved.allows(loaded)
            self._loaded, self._is_loaded = loaded if fits else None, True

    @property
    def loaded_plan(self) -> Plan | None:
        """The plan with which the next step goes on, if a checkpoint was loaded that has one."""
        decisions = self._loaded.decisions if self._loaded else []
        return decisions[-1][1].plan if decisions else None

    def _make(self, event: TunerEvent) -> None:
        """Make the transition of an event; rank 0 logs it."""
        row, left = _ROWS[event], self._state
        getattr(self, row.action)()
        self._state = row.target or left
        if self._rank == 0:
            facts = {"step": self._step, "plans": len(self._trial.decisions), "turns": self._trial.turns}
            said = row.says.format(**facts, change=self._watch.change)
            names = left.value, self._state.value
            _LOG.debug("autotune: transition %d, %s to %s: %s", row.number, *names, said)

    def _observe(self, sync: BetweenSteps) -> TunerEvent | None:
        """Let all ranks look, if that is due in the present state, and return the event."""
        since, window = self._step - self._decide_at, self._config.window_steps
        if self._state is TunerState.START:
            return self._hear(sync)
        if self._state is TunerState.PROBE and since == 0:
            return self._choose(sync)
        if self._state is TunerState.TRIAL and since == self._trial.steps:
            self._trial.note(*self._survey.time_turn(sync, self._times))
            if self._trial.present is None:
                return TunerEvent.HAS_NO_TURN
            return TunerEvent.TURNS_BACK if self._trial.is_turning else TunerEvent.HAS_NEXT_TURN
        if self._state is TunerState.HOLD and since > 0 and since % window == 0 and len(self._times):
            may_choose = self._watch.may_decide(self._step, self._config.early_share_of_patience)
            how = self._samples, self._times.median, self.decisions
            self._found = self._survey.look(sync, *how, may_choose=may_choose)
            has_changed = self._watch.changed(self._step, self._found.times)
            return TunerEvent.STEP_TIME_CHANGED if has_changed else self._found.event
        return None

    def _hear(self, sync: BetweenSteps) -> TunerEvent:
        """Let all ranks hear what rank 0 has of an earlier run."""
        own = (self._loaded or self._saved.load()) if self._rank == 0 else None
        earlier = self._earlier = self._survey.hear(sync, own)
        if isinstance(earlier, State):
            holds = earlier.decide_at <= earlier.steps
            return TunerEvent.HAS_CHECKPOINT if holds else TunerEvent.HAS_EARLY_CHECKPOINT
        return TunerEvent.KNOWS_NOTHING if earlier is None else TunerEvent.HAS_EARLIER_CHOICE

    def _choose(self, sync: BetweenSteps) -> TunerEvent:
        """Let rank 0 choose a plan, and those that may be as good."""
        found = self._survey.choose(sync, self._samples, self._times)
        if found is None:
            return TunerEvent.LACKS_SAMPLES
        is_settling = self._step <= self.settles_at
        self._trial = Trial(found.decisions[:1], config=self._config) if is_settling else found
        if STAYS in found.decisions[0].reason:
            return TunerEvent.FOUND_NO_PLAN
        return TunerEvent.FOUND_ONE_PLAN if self._trial.present is None else TunerEvent.FOUND_RIVALS

    def _choice_is_next(self) -> bool:
        is_next = self._state is TunerState.PROBE and self._step + 1 == self._decide_at
        return is_next and self._samples is None

    def _sample_for_look(self) -> None:
        """Sample this step if what the codec in use loses is looked at before the next one."""
        buckets, self._buckets = self._buckets, 0
        since, config = self._step + 1 - self._decide_at, self._config
        if since == config.window_steps or (since > 0 and since % config.resample_steps == 0):
            self._samples = self._no_samples(None if self._rules.whole else draw(self._step, buckets))

    def _no_samples(self, drawn: int | None = None) -> Samples:
        placed_for = self._world if self._rules.places else None
        return Samples(drawn=drawn, step=self._step, placed_for=placed_for, config=self._config)

    def _adopt(self, decision: Decision, why: str = "") -> None:
        if self._trial.present is None:
            self._watch.decided(self._step)
        # While a pipeline fills, its steps wait for nothing.
        self._times.forget(self._trial.settling + decision.plan.pipeline)
        self._contract.begin()
        self._take(decision, why)

    def _take(self, decision: Decision, why: str = "") -> None:
        self.decisions.append((self._step, decision))
        self._tell(decision, why)
        self._saved.save(decision if self._trial.present is None else self._trial.decisions[0])
        self._chosen = decision.plan

    def _tell(self, decision: Decision, why: str) -> None:
        told = replace(decision, reason=why + decision.reason)
        if self._rank == 0:
            level = logging.INFO if self._trial.present is None else logging.DEBUG
            _LOG.log(level, "from step %d on, %s", self._step, told.reason)
        self._note(self._step, told)

    # The actions of TRANSITIONS, by their rows.

    def resume(self) -> None:
        """Go on with the plan of the checkpoint; if a choice was due, make it after ``warm_up_steps``."""
        state = self._earlier
        assert isinstance(state, State)
        number = state.steps + 1  # another one in the run that wrote it
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
        """Take the plan of the earlier run."""
        assert isinstance(self._earlier, Decision)
        self._decide_at = self._step
        self._adopt(self._earlier, "as in an earlier run: ")

    def plan_choice(self) -> None:
        """Choose a plan after ``warm_up_steps``."""
        self._decide_at = self._step + self._config.warm_up_steps

    def sample_all(self) -> None:
        """Sample all buckets of this step."""
        self._samples = self._no_samples()  # nothing is compared: no exchange has used what may be chosen

    def delay_choice(self) -> None:
        """Choose after 1 step, or twice as many as the last time, up to ``resample_steps``."""
        self._decide_at = self._step + self._delay
        self._delay = min(2 * self._delay, self._config.resample_steps)

    def adopt(self) -> None:
        """Take the plan, or the first one on trial."""
        self._adopt(self._trial.present or self._trial.best())

    def take_turn(self) -> None:
        """Take the plan whose turn it is, or the best one if there is no turn."""
        self._decide_at = self._step
        self._adopt(self._trial.present or self._trial.best())

    def measure_again(self) -> None:
        """Choose in the next step, and measure the lines for it."""
        self._decide_at = self._step + 1
        self._survey.forget_line()
        if self._found.event is not None:
            self._survey.forget_gradients()

    def adapt(self) -> None:
        """Take the plan's codecs for these parameters, and compare step times with the next window."""
        self._take_gentler()
        self._times.forget()
        self._watch.forget()

    def adapt_and_choose(self) -> None:
        """Take them now, and choose a plan in the next step."""
        self._take_gentler()
        self._decide_at = self._step + 1

    def choose_again(self) -> None:
        """Choose in the next step, with new samples."""
        self._decide_at = self._step + 1
        self._survey.forget_gradients()

    def repeat(self) -> None:
        """Keep the plan, exchange nothing, and begin with empty samples."""
        self._samples, self._buckets = self._samples and self._no_samples(self._samples.drawn), 0

    def forget(self) -> None:
        """Forget what was measured, and any trial."""
        self._step, self._before, self._is_loaded = self._step - self._before, 0, False
        self._survey.forget_line()
        self._survey.forget_gradients()
        self._trial = Trial(())

    def _take_gentler(self) -> None:
        assert self._found.gentler is not None
        self._survey.forget_gradients()  # they differ from those that it knows
        self._take(self._found.gentler)
