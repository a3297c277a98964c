"""The collective measurements for a choice, and rank 0's conclusions from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from gradwire.autotune import costs as network
from gradwire.autotune.contract import (
    Contract,
    RelativeErrors,
    excepted,
    in_words,
    is_leaner,
    rules_for,
)
from gradwire.autotune.costs import Costs, typical
from gradwire.autotune.decision import Decision, decide
from gradwire.autotune.rules import CandidateRules
from gradwire.autotune.samples import Samples
from gradwire.autotune.saved import State
from gradwire.autotune.settings import Auto
from gradwire.autotune.states import TunerEvent
from gradwire.autotune.step_times import StepTime, StepTimes, slowest
from gradwire.autotune.trial import Trial
from gradwire.errors import GradwireError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.planner.candidates import Workload
from gradwire.sync.group import broadcast, gather, mean
from gradwire.sync.observe import BetweenSteps
from gradwire.timing.line import Line

STAYS = "stays, since no plan could be chosen"
"""The clause of a decision's reason for the case that rank 0 could not choose a plan."""
_ANEW = "anew"
"""Rank 0's answer if a new plan has to be chosen."""
_RESUMED = "resumed "
"""The prefix of a broadcast state, which distinguishes it from a decision."""


@dataclass(frozen=True)
class Findings:
    """The result of a check while a run holds its plan; the same on all ranks.

    Attributes
    ----------
    times
        The times of a step on the slowest rank.
    event
        The event caused by a change of the gradients; None without one.
    gentler
        The present plan with new codecs for parameters that break the contract, or meet it again.
    """

    times: StepTime
    event: TunerEvent | None = None
    gentler: Decision | None = None


class Survey:
    """One rank's side of the collective measurements; ``timeout_s`` limits its wait for the others."""

    def __init__(
        self,
        settings: Auto,
        rules: CandidateRules,
        contract: Contract,
        world: int,
        timeout_s: float,
    ) -> None:
        self._settings, self._config, self._rules, self._contract = settings, settings.config, rules, contract
        self._world, self._timeout_s = world, timeout_s
        self._costs = Costs(world, settings.config)
        self._own_shares: list[float] = []  # of the sampled parameters, until gradients may change
        self._shares_of: list[str] = []
        self._own_line: tuple[float, ...] = ()  # until step times change

    def forget_line(self) -> None:
        """Discard the measurement of the links, so that the next choice measures them again."""
        self._own_line = ()

    def forget_gradients(self) -> None:
        """Discard the relative errors of codecs, so that the next choice measures them again."""
        self._own_shares = []

    def hear(self, sync: BetweenSteps, earlier: State | Decision | None) -> State | Decision | None:
        """Return, on all ranks, rank 0's state or decision of an earlier run; None if it has neither."""
        text = "" if earlier is None else earlier.to_json()
        text = _RESUMED + text if isinstance(earlier, State) else text
        text = sync.exchange_now(
            "the plan of an earlier run", lambda exchange: broadcast(exchange, text, self._timeout_s)
        )
        if text.startswith(_RESUMED):
            return State.from_json(text.removeprefix(_RESUMED))
        return Decision.from_json(text) if text else None

    def choose(self, sync: BetweenSteps, samples: Samples | None, times: StepTimes) -> Trial | None:
        """Return the chosen plan and its rivals; None if a rank has no finite sample yet."""
        present, now = sync.context.plan, times.median
        text = sync.exchange_now(
            "the choice of a plan", lambda exchange: self._choose(exchange, samples, now, present)
        )
        return Trial.from_json(text, present, self._config) if text else None

    def time_turn(self, sync: BetweenSteps, times: StepTimes) -> tuple[float, float]:
        """Return the step time of the slowest rank in the latest turn, and the scatter of its steps."""
        row = [times.median.step_s if len(times) else inf, times.disagreement]
        rows = sync.exchange_now("step times", lambda exchange: gather(exchange, row, self._timeout_s))
        step_s, scatter = max(rows)
        return step_s, scatter

    def look(
        self,
        sync: BetweenSteps,
        samples: Samples | None,
        now: StepTime,
        decisions: Sequence[tuple[int, Decision]],
        *,
        may_choose: bool,
    ) -> Findings:
        """Return the slowest rank's step times, and the result of checking the plan against the contract.

        ``may_choose`` says whether enough steps have passed for a new choice because of gradients.
        """
        present = sync.context.plan

        def look(exchange: Exchange) -> Findings:
            return self._look(exchange, samples, now, present, decisions, may_choose)

        return sync.exchange_now("step times and relative errors", look)

    def _choose(self, exchange: Exchange, samples: Samples | None, now: StepTime, present: Plan) -> str:
        """Return a ``Trial`` as JSON, the same on all ranks; empty if a rank has no finite sample yet."""
        usable = samples is not None and samples.finite
        if not all(row[0] for row in gather(exchange, [float(usable)], self._timeout_s)) or samples is None:
            return ""
        if not self._own_shares or self._shares_of != samples.names:  # the same condition on all ranks
            self._average_norms(exchange, samples)
            self._shares_of = samples.names
            self._own_shares = self._contract.own_errors(samples, self._settings.candidates)
            self._costs.forget_sizes()
        row = [now.compute_s, now.backward_s, now.exposed_s, *self._own_shares]
        self._own_line = self._own_line or network.own_line(exchange.link, self._config)
        row += self._own_line
        rows = gather(exchange, row, self._timeout_s)
        line = network.line_of([each[-network.LINE_FIELDS :] for each in rows])
        text = ""
        if exchange.link.rank == 0:
            shares = [each[3 : -network.LINE_FIELDS] for each in rows]
            codecs, may = self._settings.candidates, self._rules.algorithms
            lost = self._contract.errors(shares, samples, codecs, may, present)
            text = Trial(self._decided(samples, line, slowest(rows), lost, present)).to_json()
        return broadcast(exchange, text, self._timeout_s)

    def _look(
        self,
        exchange: Exchange,
        samples: Samples | None,
        now: StepTime,
        present: Plan,
        decisions: Sequence[tuple[int, Decision]],
        may_choose: bool,
    ) -> Findings:
        self._average_norms(exchange, samples)
        row = [now.compute_s, now.backward_s, now.exposed_s, *self._contract.row(samples, present)]
        rows = gather(exchange, row, self._timeout_s)
        times = slowest(rows)
        if samples is None:
            return Findings(times)
        names = self._contract.judge([each[3:] for each in rows], samples, present)
        if names is not None:
            gentler = self._excepted(exchange, samples, present, names, decisions)
            if gentler is None:
                return Findings(times, TunerEvent.PLAN_IS_UNSUITED)
            is_wide = samples.part(names - excepted(present, names)) > self._config.wide_share
            many = is_wide and may_choose
            return Findings(
                times, TunerEvent.MANY_NEED_OTHERS if many else TunerEvent.SOME_NEED_OTHERS, gentler
            )
        is_finite = all(each[3] for each in rows)  # on all ranks
        if may_choose and is_finite and self._leaner(exchange, samples, present, decisions):
            return Findings(times, TunerEvent.LEANER_SUITS)
        return Findings(times)

    def _excepted(
        self,
        exchange: Exchange,
        samples: Samples,
        present: Plan,
        names: frozenset[str],
        decisions: Sequence[tuple[int, Decision]],
    ) -> Decision | None:
        """Return the decision that gives the parameters in ``names`` other codecs, the same on all ranks.

        Return None if they hold too many values, or if the present codec is not a candidate.
        """
        codecs = self._settings.candidates
        if present.codec not in codecs:  # no choice made this plan
            return None
        rows = gather(exchange, self._contract.own_errors(samples, codecs), self._timeout_s)
        found = self._contract.errors(rows, samples, codecs, [present.algorithm], present)
        lost = found[present.algorithm]
        if lost.part(names) > lost.most_excepted or not decisions:
            return None
        text = ""
        if exchange.link.rank == 0:
            gentler = lost.gentler(present.codec, names, self._contract.refused)
            plan = replace(present, codecs=rules_for(gentler))
            reason = in_words(plan.codec, gentler, lost.most) or f"{plan.codec} for all parameters again"
            text = replace(decisions[-1][1], plan=plan, reason=reason).to_json()
        return Decision.from_json(broadcast(exchange, text, self._timeout_s))

    def _leaner(
        self,
        exchange: Exchange,
        samples: Samples,
        present: Plan,
        decisions: Sequence[tuple[int, Decision]],
    ) -> bool:
        """Return whether a rejected codec now meets the contract and sends far fewer bytes.

        The result is the same on all ranks. A codec that was in use before is not considered again.
        """
        left_out = decisions[-1][1].left_out if decisions else ()
        failed = {str(decision.plan.codec) for _, decision in decisions}
        others = [each for each in self._settings.candidates if str(each) in {*left_out} - failed]
        if not others:
            return False
        codecs = [present.codec, *others]
        rows, text = gather(exchange, self._contract.own_errors(samples, codecs), self._timeout_s), ""
        if exchange.link.rank == 0:
            found = self._contract.errors(rows, samples, codecs, self._rules.algorithms, present).values()
            is_due = any(is_leaner(each, present, others) for each in found)
            text = _ANEW if is_due else ""
        return bool(broadcast(exchange, text, self._timeout_s))

    def _average_norms(self, exchange: Exchange, samples: Samples | None) -> None:
        """Average the norms of columns and rows over all ranks, as the reference of relative errors."""
        if samples is not None:
            norms = samples.slice_norms()
            mean(exchange, norms, self._timeout_s)
            samples.compare_with(norms)

    def _decided(
        self, samples: Samples, line: Line, now: StepTime, lost: Mapping[str, RelativeErrors], present: Plan
    ) -> tuple[Decision, ...]:
        """Return rank 0's decisions from the errors with each algorithm; if that fails, keep the plan."""
        workload = Workload(
            (sum(samples.counts),) if self._rules.whole else tuple(reversed(samples.counts)),
            forward_s=now.compute_s - now.backward_s,
            backward_s=now.backward_s,
        )
        involved = dict.fromkeys(codec for each in lost.values() for codec in each.involved(present))
        try:
            environment = self._costs.environment(line, involved, typical(samples.flat))
            return decide(environment, workload, self._world, lost, present, self._rules.half)
        except GradwireError as error:
            reason = f"{present.codec} over {present.algorithm} {STAYS}: {error}"
            return (Decision(present, now.step_s, now.step_s, now.compute_s, reason),)
