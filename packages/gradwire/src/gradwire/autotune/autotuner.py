"""What a run does about its plan from step to step: measure, decide, watch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter
from typing import Protocol, TypeVar

from gradwire.autotune import costs as network
from gradwire.autotune import saved
from gradwire.autotune.contract import (
    BUCKETS,
    Contract,
    Form,
    Losses,
    Lost,
    draw,
    excepted,
    in_words,
    is_leaner,
    rules_for,
)
from gradwire.autotune.costs import Costs, typical
from gradwire.autotune.decision import Decision, decide
from gradwire.autotune.samples import Samples
from gradwire.autotune.saved import Saved, State, broadcast, gather, mean
from gradwire.autotune.settings import Auto, terms_of
from gradwire.autotune.step_times import StepTime, StepTimes, slowest
from gradwire.autotune.trial import Trial, Watch
from gradwire.codecs import parse
from gradwire.errors import GradwireError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.planner.candidates import Workload
from gradwire.timing.line import Line

_RESUMED = "resumed "
"""Begins the text of a state, in place of a decision."""
_ANEW = "anew"
"""In place of a decision: the whole plan has to be chosen once more."""
_LOG = logging.getLogger("gradwire")
T = TypeVar("T")


class Ask(Protocol):
    """Lets the thread that owns the exchange do something, which all ranks do, and returns its result."""

    def __call__(self, what: str, work: Callable[[Exchange], T]) -> T:
        """Do ``work`` with the exchange; errors call it ``what``."""


class Pilot:
    """Chooses one run's plans, on all ranks alike: what rank 0 decides from the measurements of all of them.

    Parameters
    ----------
    settings
        What the user wants.
    rank, world
        Whose pilot it is.
    shapes
        Those of the model's parameters that are trained.
    timeout_s
        How long a rank waits for the others.
    form
        How the run exchanges its gradients.
    clock
        What times steps, in seconds.
    names
        Those of all of the model's parameters.

    Attributes
    ----------
    decisions
        The steps before which plans were chosen, and what was decided.
    note
        Called with each of them, if it is not None.
    settles_at
        Up to this step, steps take another time than later, so that no plans are tried.
    """

    def __init__(
        self,
        settings: Auto,
        rank: int,
        world: int,
        shapes: Sequence[Sequence[int]],
        timeout_s: float,
        clock: Callable[[], float] = perf_counter,
        *,
        form: Form = BUCKETS,
        names: Collection[str],
    ) -> None:
        self.decisions: list[tuple[int, Decision]] = []
        self.note: Callable[[int, Decision], None] | None = None
        self.settles_at = 0
        self._settings, self._rank, self._world, self._timeout_s = settings, rank, world, timeout_s
        self._config = config = settings.config
        key = saved.fingerprint(shapes, world, form.name)
        self._form, self._saved = form, Saved(settings, form, names, key, tells=rank == 0)
        self._clock, self._times, self._watch = clock, StepTimes(clock, config), Watch(config)
        self._contract = Contract(settings.max_lost_norm, world, config=config)
        self._losses = Losses(self._contract, form.most_excepted(config))
        self._samples: Samples | None = None
        self._buckets = 0
        self._decide_at, self._delay = config.warm_up_steps + 1, 1
        self._begun, self._steps, self._before = False, 0, 0
        self._chosen: Plan | None = None  # in the latest step
        self._loaded: State | None = None
        self._costs, self._trial = Costs(world, config), Trial(())
        self._own_shares: list[float] = []  # of the sampled parameters, until gradients may be others
        self._shares_of: list[str] = []
        self._own_line: tuple[float, ...] = ()  # until the times of steps change

    def begin(self, step: int, present: Plan, ask: Ask) -> Plan | None:
        """Return the plan from ``step`` on, counted from 1 up, or None where the present one stays.

        All ranks call it before each step. Another call for a step that is retried, because the script ran
        out of memory, say, exchanges nothing and returns the same: other ranks may not retry it. Raises
        ``ExchangeError``.
        """
        if self._world == 1:
            return None
        if self._begun and step + self._before == self._steps:
            self._samples, self._buckets = self._samples and self._samples.anew(), 0
            return self._chosen
        began = self._clock()
        if self._begun:
            step += self._before
            chosen = self._steer(step, present, ask)
        else:
            chosen = self._start(step, ask)
            step += self._before
        self._steps = step
        buckets, self._buckets = self._buckets, 0
        precedes_choice = step + 1 == self._decide_at  # of other codecs, which no exchange has used
        drawn = None if precedes_choice else draw(step, buckets)
        placed_for = self._world if self._form.places else None
        self._samples = None
        if self._samples_at(step):
            self._samples = Samples(drawn=drawn, step=step, placed_for=placed_for, config=self._config)
        self._times.leave_out(self._clock() - began)
        self._chosen = chosen
        return chosen

    @property
    def samples(self) -> Samples | None:
        """Where this step's buckets are to be copied, if it is sampled."""
        return self._samples

    def handed_over(self, count: int) -> None:
        """Note that backward has a bucket of ``count`` floats ready."""
        self._buckets += 1
        self._times.handed_over(count)

    def end(self) -> None:
        """Note that a step's averages are all there."""
        self._times.end()

    def took(self, wait_s: float) -> None:
        """Note the end of a step that waited this long for averages, in place of the two before."""
        self._times.took(wait_s)

    def state(self) -> State:
        """Return what a checkpoint keeps; call it between two steps."""
        if self._loaded is not None:  # and no step was taken since
            return self._loaded
        contract, watch = self._contract, self._watch
        # What steps took with plans on trial is of no use to another run, which has to decide anew.
        decide_at = self._decide_at if self._trial.present is None else self._steps + 1
        counts = (self._world, self._steps, decide_at, watch.patience, watch.since)
        refused = sorted(map(str, contract.refused))
        return State(*counts, [*self.decisions], dict(contract.seen), refused, terms_of(self._settings))

    def load(self, state: State) -> Plan | None:
        """Go on where ``state`` was called, from the next step on; all ranks load, and rank 0's counts.

        Return the plan that it had, if one was chosen. The state of another number of ranks is left out, and
        so is one that the present settings don't allow: the run measures anew.
        """
        self._loaded = state if state.world == self._world and self._saved.allows(state) else None
        self._begun = False
        return self._loaded.decisions[-1][1].plan if self._loaded and self._loaded.decisions else None

    def _samples_at(self, step: int) -> bool:
        since = step + 1 - self._decide_at
        config = self._config
        return since in (0, config.window_steps) or (since > 0 and since % config.resample_steps == 0)

    def _steer(self, step: int, present: Plan, ask: Ask) -> Plan | None:
        """Decide or look, where that is due."""
        if step == self._decide_at:
            return self._decide(step, present, ask)
        if self._trial.present is not None:
            return self._try_next(step, ask) if step == self._decide_at + self._trial.steps else None
        if step > self._decide_at and (step - self._decide_at) % self._config.window_steps == 0 and len(self._times):
            return self._look(step, present, ask)
        return None

    def _start(self, step: int, ask: Ask) -> Plan | None:
        """Go on where a checkpoint was written, or with what a run before has decided, if rank 0 has that."""
        self._begun, self._before, self._decide_at = True, 0, step + self._config.warm_up_steps
        self._own_shares, self._own_line, self._trial = [], (), Trial(())
        text = ""
        if self._rank == 0 and self._loaded is not None:
            text = _RESUMED + self._loaded.to_json()
        elif self._rank == 0 and (found := self._saved.load()) is not None:
            text = found.to_json()
        text = ask("the plan of an earlier run", lambda exchange: broadcast(exchange, text, self._timeout_s))
        if text.startswith(_RESUMED):
            return self._resume(step, State.from_json(text.removeprefix(_RESUMED)))
        if not text:
            return None
        self._decide_at = step
        return self._adopt(step, Decision.from_json(text), "as in an earlier run: ")

    def _resume(self, step: int, state: State) -> Plan | None:
        """Go on from a checkpoint before ``step``, whose number was another one in the run that wrote it.

        What was measured for a decision that was due then is not there any more.
        """
        number = state.steps + 1
        self._before, self._loaded = number - step, None
        self._decide_at = state.decide_at if state.decide_at < number else number + self._config.warm_up_steps
        self.decisions = list(state.decisions)
        self._watch.patience, self._watch.since = state.patience, state.since
        self._contract.seen, self._contract.refused = dict(state.seen), {*map(parse, state.refused)}
        self._times.forget()
        if not self.decisions:
            return None
        self._tell(number, self.decisions[-1][1], "as before the checkpoint: ")
        return self.decisions[-1][1].plan

    def _decide(self, step: int, present: Plan, ask: Ask) -> Plan | None:
        text = ask("the choice of a plan", lambda exchange: self._choose(exchange, present))
        if not text:  # a sample was empty, or not finite; a later one may be better
            self._decide_at, self._delay = step + self._delay, min(2 * self._delay, self._config.resample_steps)
            return None
        self._trial = Trial.from_json(text, present, self._config)
        if step <= self.settles_at:
            self._trial = Trial(self._trial.decisions[:1], config=self._config)
        return self._adopt(step, self._trial.present or self._trial.best())

    def _try_next(self, step: int, ask: Ask) -> Plan:
        """Let all ranks know what steps took with the plan on trial; go on with the next one, or the best."""
        row = [self._times.median.step_s if len(self._times) else inf, self._times.disagreement]
        rows = ask("the times of steps", lambda exchange: gather(exchange, row, self._timeout_s))
        self._trial.note(*max(rows))
        self._decide_at = step
        return self._adopt(step, self._trial.present or self._trial.best())

    def _adopt(self, step: int, decision: Decision, why: str = "") -> Plan:
        if self._trial.present is None:
            self._watch.decided(step)
        # While a pipeline fills, its steps wait for nothing.
        self._times.forget(self._trial.settling + decision.plan.pipeline)
        self._contract.begin()
        return self._take(step, decision, why)

    def _take(self, step: int, decision: Decision, why: str = "") -> Plan:
        self.decisions.append((step, decision))
        self._tell(step, decision, why)
        if self._rank == 0:
            self._saved.save(decision if self._trial.present is None else self._trial.decisions[0])
        return decision.plan

    def _tell(self, step: int, decision: Decision, why: str) -> None:
        told = replace(decision, reason=why + decision.reason)
        if self._rank == 0:
            level = logging.INFO if self._trial.present is None else logging.DEBUG
            _LOG.log(level, "from step %d on, %s", step, told.reason)
        if self.note is not None:
            self.note(step, told)

    def _look(self, step: int, present: Plan, ask: Ask) -> Plan | None:
        """Let all ranks compare what steps take, and lose, with what they may; maybe decide once more."""
        now, samples = self._times.median, self._samples
        text, wide = "", False

        def compare(exchange: Exchange) -> list[list[float]]:
            nonlocal text, wide
            self._average_norms(exchange, samples)
            row = [now.compute_s, now.backward_s, now.exposed_s, *self._contract.row(samples, present)]
            rows = gather(exchange, row, self._timeout_s)
            if samples is not None:
                names = self._contract.judge([each[3:] for each in rows], samples, present)
                text = "" if names is None else self._excepted(exchange, samples, present, names)
                wide = names is not None and samples.part(names - excepted(present, names)) > self._config.wide_share
                if not text and all(each[3] for each in rows):  # all ranks' samples are finite
                    text = self._leaner(exchange, samples, present, step)
            return rows

        rows = ask("the times of steps", compare)
        if (changed := self._watch.changed(step, slowest(rows))) or text == _ANEW:
            self._decide_at = step + 1
            self._own_line = () if changed else self._own_line
            self._own_shares = [] if text else self._own_shares
        elif text:
            self._own_shares = []  # the gradients are others than those that they are of
            if wide and self._watch.may_decide(step, self._config.early_share_of_patience):
                self._decide_at = step + 1
            else:
                self._times.forget()
                self._watch.forget()
            return self._take(step, Decision.from_json(text))
        return None

    def _excepted(self, exchange: Exchange, samples: Samples, present: Plan, names: frozenset[str]) -> str:
        """Return the decision about parameters with another codec as JSON, the same on all ranks.

        ``_ANEW`` where they have become too many.
        """
        most = self._settings.max_lost_norm
        if present.codec not in self._settings.candidates:  # which no choice has made
            return _ANEW
        codecs = self._settings.candidates
        rows = gather(exchange, self._losses.own(samples, codecs), self._timeout_s)
        found = self._losses.of_exchanges(rows, samples, codecs, [present.algorithm], present)
        lost = found[present.algorithm]
        if lost.part(names) > lost.most_excepted or not self.decisions:
            return _ANEW
        text = ""
        if self._rank == 0:
            gentler = lost.gentler(present.codec, names, most, self._contract.refused)
            plan = replace(present, codecs=rules_for(gentler))
            reason = in_words(plan.codec, gentler, most) or f"{plan.codec} for all parameters again"
            text = replace(self.decisions[-1][1], plan=plan, reason=reason).to_json()
        return broadcast(exchange, text, self._timeout_s)

    def _leaner(self, exchange: Exchange, samples: Samples, present: Plan, step: int) -> str:
        """Return ``_ANEW`` if a codec that didn't suit the gradients does so by now, and sends far less.

        The same on all ranks; empty otherwise. One that was in use and is left out since has failed.
        """
        left_out = self.decisions[-1][1].left_out if self.decisions else ()
        failed = {str(decision.plan.codec) for _, decision in self.decisions}
        others = [each for each in self._settings.candidates if str(each) in {*left_out} - failed]
        if not others or not self._watch.may_decide(step, self._config.early_share_of_patience):
            return ""
        codecs = [present.codec, *others]
        rows, text = gather(exchange, self._losses.own(samples, codecs), self._timeout_s), ""
        if self._rank == 0:
            may, most = self._form.algorithms, self._settings.max_lost_norm
            found = self._losses.of_exchanges(rows, samples, codecs, may, present).values()
            is_due = any(is_leaner(each, present, others, most) for each in found)
            text = _ANEW if is_due else ""
        return broadcast(exchange, text, self._timeout_s)

    def _average_norms(self, exchange: Exchange, samples: Samples | None) -> None:
        """Let columns and rows be judged by the means of their norms on all ranks."""
        if samples is not None:
            norms = samples.slice_norms()
            mean(exchange, norms, self._timeout_s)
            samples.compare_with(norms)

    def _choose(self, exchange: Exchange, present: Plan) -> str:
        """Return a decision as JSON, the same on all ranks; empty where nothing can be measured yet."""
        samples, now = self._samples, self._times.median
        usable = samples is not None and samples.finite
        if not all(row[0] for row in gather(exchange, [float(usable)], self._timeout_s)) or samples is None:
            return ""
        if not self._own_shares or self._shares_of != samples.names:  # which are the same on all ranks
            self._average_norms(exchange, samples)
            self._shares_of = samples.names
            self._own_shares = self._losses.own(samples, self._settings.candidates)
            self._costs.forget_sizes()
        row = [now.compute_s, now.backward_s, now.exposed_s, *self._own_shares]
        self._own_line = self._own_line or network.own_line(exchange.link, self._config.line_effort)
        row += self._own_line
        rows = gather(exchange, row, self._timeout_s)
        line = network.line_of([each[-network.LINE_FIELDS :] for each in rows])
        text = ""
        if self._rank == 0:
            shares = [each[3 : -network.LINE_FIELDS] for each in rows]
            codecs, may = self._settings.candidates, self._form.algorithms
            lost = self._losses.of_exchanges(shares, samples, codecs, may, present)
            text = Trial(self._decided(samples, line, slowest(rows), lost, present)).to_json()
        return broadcast(exchange, text, self._timeout_s)

    def _decided(
        self, samples: Samples, line: Line, now: StepTime, lost: Mapping[str, Lost], present: Plan
    ) -> tuple[Decision, ...]:
        """Return what rank 0 decides, by what is lost over each algorithm; where that fails, all stay."""
        workload = Workload(
            (sum(samples.counts),) if self._form.whole else tuple(reversed(samples.counts)),
            forward_s=now.compute_s - now.backward_s,
            backward_s=now.backward_s,
        )
        most = self._settings.max_lost_norm
        involved = dict.fromkeys(codec for each in lost.values() for codec in each.involved(most, present))
        try:
            environment = self._costs.environment(line, involved, typical(samples.flat))
            form, config = self._form, self._config
            return decide(environment, workload, self._world, lost, most, present, form.half, config)
        except GradwireError as error:
            reason = f"{present.codec} over {present.algorithm} stays, since no plan could be chosen: {error}"
            return (Decision(present, now.step_s, now.step_s, now.compute_s, reason),)
