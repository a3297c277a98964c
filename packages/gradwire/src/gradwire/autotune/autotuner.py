"""The state machine that chooses a run's plan from step to step: measure, decide, try, watch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from gradwire.autotune import saved
from gradwire.autotune.contract import CandidateRules, Contract, draw
from gradwire.autotune.decision import Decision
from gradwire.autotune.samples import BucketSampler, Samples
from gradwire.autotune.saved import Saved, State
from gradwire.autotune.settings import Auto, terms_of
from gradwire.autotune.states import TRANSITIONS, Transition, TunerState
from gradwire.autotune.step_times import StepTimes
from gradwire.autotune.survey import STAYS, Findings, Survey
from gradwire.autotune.trial import Trial, Watch
from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire.sync.buckets import float_shape
from gradwire.sync.context import SyncContext
from gradwire.sync.observe import NULL_BUCKET, BetweenSteps, BucketObserver, StepCost, StepObserver
from gradwire.sync.residual import AUTO
from gradwire.sync.work import BucketWork

_LOG = logging.getLogger("gradwire")


class Autotuner(StepObserver):
    """Chooses one run's plans, on all ranks alike: what rank 0 decides from the measurements of all of them.

    Before each step, ``begin`` evaluates the table ``TRANSITIONS``, whose methods end the class.

    Parameters
    ----------
    settings
        What the user wants.
    rules
        How the run exchanges its gradients.
    parameters
        The model's, with their names.
    clock
        What times steps, in seconds.

    Attributes
    ----------
    decisions
        The steps before which plans were chosen, and what was decided.
    settles_at
        Up to this step, steps take another time than later, so that no plans are tried.
    """

    def __init__(
        self,
        settings: Auto,
        rules: CandidateRules,
        parameters: Iterable[tuple[str, torch.Tensor]],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.decisions: list[tuple[int, Decision]] = []
        self.settles_at = 0
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
        self._trial = Trial(())
        self._step, self._buckets = 0, 0  # the step under way, and its buckets so far
        self._observed: State | Decision | Trial | Findings | None = None  # by all ranks, before it
        self._is_loaded = self._is_due = self._has_changed = False

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
        if self._evaluate(None) and self._state is not TunerState.START:
            return self._chosen  # of the same step
        self._observe(sync)
        self._chosen = self._samples = None
        while self._evaluate(self._state):
            self._observed, self._is_due = None, False
        self._steps = self._step
        self._sample_for_look()
        self._times.leave_out(self._clock() - began)
        return self._chosen

    def bucket(self, work: BucketWork) -> BucketObserver:
        """Return what samples a bucket in a step that is sampled."""
        number, self._buckets = self._buckets, self._buckets + 1
        self._times.handed_over(work.tensor.numel())
        if self._samples is None:
            return NULL_BUCKET
        part_nbytes = self._config.sampled_nbytes if self._rules.whole else None
        is_drawn = self._samples.drawn == number
        return BucketSampler(self._samples, work, self._shapes, drawn=is_drawn, part_nbytes=part_nbytes)

    def end(self, cost: StepCost) -> None:
        """Note that a step's averages are all there."""
        self._times.end(None if self._rules.overlaps else cost.wait_s)

    def state(self) -> dict[str, str]:
        """Return what a checkpoint keeps of the choice; call it between two steps."""
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

    def _evaluate(self, source: TunerState | None) -> bool:
        """Make the first transition from ``source`` whose guard holds; return whether there is one."""
        for row in TRANSITIONS:
            if row.source is source and getattr(self, row.guard)():
                left = self._state
                getattr(self, row.action)()
                self._state = row.target or left
                self._log(row, left)
                return True
        return False

    def _log(self, row: Transition, left: TunerState) -> None:
        if self._rank == 0:
            facts = {"step": self._step, "plans": len(self._trial.decisions), "turns": self._trial.turns}
            said = row.says.format(**facts, change=self._watch.change)
            names = left.value, self._state.value
            _LOG.debug("autotune: transition %d, %s to %s: %s", row.number, *names, said)

    def _observe(self, sync: BetweenSteps) -> None:
        """Let all ranks observe what the guards of the present state ask about, if that is due."""
        self._observed, self._is_due = None, False
        since, window = self._step - self._decide_at, self._config.window_steps
        if self._state is TunerState.START:
            earlier = (self._loaded or self._saved.load()) if self._rank == 0 else None
            self._observed = self._survey.hear(sync, earlier)
        elif self._state is TunerState.PROBE and since == 0:
            found = self._survey.choose(sync, self._samples, self._times)
            if found is not None and self._step <= self.settles_at:
                found = Trial(found.decisions[:1], config=self._config)
            self._is_due, self._observed = True, found
        elif self._state is TunerState.TRIAL and since == self._trial.steps:
            self._is_due = True
            self._trial.note(*self._survey.time_turn(sync, self._times))
        elif self._state is TunerState.HOLD and since > 0 and since % window == 0 and len(self._times):
            may_choose = self._watch.may_decide(self._step, self._config.early_share_of_patience)
            how = self._samples, self._times.median, self.decisions
            self._observed = self._survey.look(sync, *how, may_choose=may_choose)
            self._has_changed = self._watch.changed(self._step, self._observed.times)

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

    # The guards of TRANSITIONS, by their rows.

    def checkpoint_holds(self) -> bool:
        """Return whether rank 0 has a checkpoint, and no choice was due when it was written."""
        return isinstance(self._observed, State) and self._observed.decide_at <= self._observed.steps

    def has_checkpoint(self) -> bool:
        """Return whether rank 0 has a checkpoint that the settings allow, of as many ranks."""
        return isinstance(self._observed, State)

    def has_earlier_choice(self) -> bool:
        """Return whether the file of decisions has one of this run's kind that the settings allow."""
        return isinstance(self._observed, Decision)

    def knows_nothing(self) -> bool:
        """Return whether no other row applies."""
        return True

    def precedes_choice(self) -> bool:
        """Return whether a plan is to be chosen before the next step, and this one isn't sampled yet."""
        return self._step + 1 == self._decide_at and self._samples is None

    def lacks_samples(self) -> bool:
        """Return whether a choice is due, and a rank's sample is missing or not finite."""
        return self._is_due and self._observed is None

    def failed_to_choose(self) -> bool:
        """Return whether rank 0 could not predict what plans take."""
        return isinstance(self._observed, Trial) and STAYS in self._observed.decisions[0].reason

    def has_one_plan(self) -> bool:
        """Return whether no other plan may be as good, or steps don't take their usual time yet."""
        return isinstance(self._observed, Trial) and self._observed.present is None

    def has_rivals(self) -> bool:
        """Return whether several plans may be the best."""
        return isinstance(self._observed, Trial)

    def has_next_turn(self) -> bool:
        """Return whether a turn is over, and another one of the same round follows."""
        return self._is_due and self._trial.present is not None and not self._trial.is_turning

    def turns_back(self) -> bool:
        """Return whether all plans had their first turn, and more than one isn't behind."""
        return self._is_due and self._trial.is_turning

    def has_no_turn(self) -> bool:
        """Return whether the last turn is over."""
        return self._is_due

    def step_time_changed(self) -> bool:
        """Return whether steps differ by ``changed_step_share`` from the first window, past the patience."""
        return isinstance(self._observed, Findings) and self._has_changed

    def some_need_others(self) -> bool:
        """Return whether other parameters than before break the contract, or keep it again."""
        look = self._observed
        return isinstance(look, Findings) and look.gentler is not None and not look.is_wide

    def many_need_others(self) -> bool:
        """Return whether over ``wide_share`` of the values newly break it, and some patience has passed."""
        look = self._observed
        return isinstance(look, Findings) and look.gentler is not None and look.is_wide

    def plan_is_unsuited(self) -> bool:
        """Return whether over ``most_excepted_share`` break it, or the codec is no candidate."""
        return isinstance(self._observed, Findings) and self._observed.is_unsuited

    def leaner_codec_suits(self) -> bool:
        """Return whether a codec that was left out keeps it with room, and sends under ``far_less_share``."""
        return isinstance(self._observed, Findings) and self._observed.is_leaner

    def is_repeated(self) -> bool:
        """Return whether the latest step begins again."""
        return not self._is_loaded and self._state is not TunerState.START and self._step == self._steps

    def was_loaded(self) -> bool:
        """Return whether ``load`` was called since the latest step."""
        return self._is_loaded

    # The actions.

    def resume(self) -> None:
        """Go on with the plan of the checkpoint; if a choice was due, make it after ``warm_up_steps``."""
        state = self._observed
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
        assert isinstance(self._observed, Decision)
        self._decide_at = self._step
        self._adopt(self._observed, "as in an earlier run: ")

    def plan_choice(self) -> None:
        """Choose a plan after ``warm_up_steps``."""
        self._decide_at = self._step + self._config.warm_up_steps

    def sample_all(self) -> None:
        """Sample all buckets of this step."""
        self._samples = (
            self._no_samples()
        )  # no exchange has used what may be chosen: there is none to compare

    def delay_choice(self) -> None:
        """Choose after 1 step, or twice as many as the last time, up to ``resample_steps``."""
        self._decide_at = self._step + self._delay
        self._delay = min(2 * self._delay, self._config.resample_steps)

    def adopt(self) -> None:
        """Take the plan, or the first one on trial."""
        assert isinstance(self._observed, Trial)
        self._trial = self._observed
        self._adopt(self._trial.present or self._trial.best())

    def take_turn(self) -> None:
        """Take the plan whose turn it is, or the best one if there is no turn."""
        self._decide_at = self._step
        self._adopt(self._trial.present or self._trial.best())

    def measure_again(self) -> None:
        """Choose in the next step, and measure the lines for it."""
        self._decide_at = self._step + 1
        self._survey.forget_line()
        if isinstance(self._observed, Findings) and self._observed.is_about_gradients:
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
        assert isinstance(self._observed, Findings)
        assert self._observed.gentler is not None
        self._survey.forget_gradients()  # they differ from those that it knows
        self._take(self._observed.gentler)
