"""The measurements in which all ranks take part, and rank 0's conclusions from these measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from math import inf
from statistics import fmean
from time import perf_counter
from typing import TypeVar

import torch

from gradwire.autotune import costs as network
from gradwire.autotune.contract import (
    Contract,
    RelativeErrors,
    encodings,
    excepted,
    in_words,
    is_leaner,
    rules_for,
)
from gradwire.autotune.costs import Costs, Rows, Together, Work, at_once, hosts_of, typical
from gradwire.autotune.decide import decide
from gradwire.autotune.decision import STAYS, Decision, State
from gradwire.autotune.samples import Samples, part_of
from gradwire.autotune.settings import Auto, CandidateRules
from gradwire.autotune.states import Trial, TunerEvent
from gradwire.autotune.steps import StepTime, StepTimes, slowest
from gradwire.codecs import Codec
from gradwire.errors import GradwireError, SpecError
from gradwire.exchange import Exchange
from gradwire.fields import flag, optional, pair
from gradwire.fields import rows as rows_of
from gradwire.machine import cores
from gradwire.plan import MAX_LANES, Plan
from gradwire.planner.candidates import Workload, lanes_in
from gradwire.sync.bucket.observe import BetweenSteps
from gradwire.sync.messages import Record, broadcast, gather, mean
from gradwire.timing.line import Line
from gradwire.timing.pairs import HostMap

T = TypeVar("T")
_CHOICE, _LOOK = "the choice of a plan", "step times and relative errors"
"""The names of exchanges in errors."""
_TIMES = len(fields(StepTime))
"""The number of a step's times, with which the rows of these exchanges begin."""


def _at_least_one(values: object) -> tuple[Decision, ...]:
    found = rows_of(Decision.from_values)(values)
    if not found:
        raise SpecError("expected at least one decision, got none; use one version of gradwire on all ranks")
    return found


EARLIER = Record(
    1, "the plan of an earlier run", pair(optional(State.from_values), optional(Decision.from_values))
)
CHOICES = Record(2, "the plans of a choice", _at_least_one)
GENTLER = Record(3, "other codecs for some parameters", optional(Decision.from_values))
LEANER = Record(4, "the check for a leaner codec", flag)


@dataclass(frozen=True)
class Findings:
    """The result of a check while a run holds its plan; the same on all ranks."""

    times: StepTime  # of a step on the slowest rank
    event: TunerEvent | None = None  # caused by a change of the gradients
    gentler: Decision | None = None  # the present plan with new codecs of some parameters


class Survey:
    """One rank's side of the collective measurements; ``timeout_s`` limits each wait for other ranks."""

    def __init__(
        self,
        settings: Auto,
        rules: CandidateRules,
        contract: Contract,
        rank: int,
        world: int,
        timeout_s: float,
    ) -> None:
        self._settings, self._config, self._rules, self._contract = settings, settings.config, rules, contract
        self._rank, self._world, self._timeout_s = rank, world, timeout_s
        self._hosts: HostMap | None = None
        self._costs = Costs(1, settings.config)
        self._own_shares: list[float] = []  # of the sampled parameters, until gradients may change
        self._shares_of: list[str] = []
        self._own_line: tuple[float, ...] = ()  # until step times change
        self.has_broken = False  # whether the latest check has found that parameters break the contract
        self.most_lanes = MAX_LANES if rules.has_lanes else 1

    def forget_line(self) -> None:
        """Discard the measurement of the links, so that the next choice measures them again."""
        self._own_line = ()

    def forget_gradients(self) -> None:
        """Discard the relative errors of codecs, so that the next choice measures them again."""
        self._own_shares = []

    def broadcast_earlier(
        self, sync: BetweenSteps, earlier: State | Decision | None
    ) -> State | Decision | None:
        """Return, on all ranks, rank 0's state or decision of an earlier run; None without either."""
        own = (earlier, None) if isinstance(earlier, State) else (None, earlier)
        state, decision = sync.exchange_now(
            EARLIER.what, lambda exchange: broadcast(exchange, EARLIER, own, self._timeout_s)
        )
        return state or decision

    def prepare(self, exchange: Exchange, count: int, *, knows_plan: bool) -> None:
        """Measure codecs, frames, and low-latency links before the first step, unless rank 0 knows a plan.

        All ranks call this. One rank on each kind of host measures codecs and frames. ``count`` is the number
        of values in the model's gradient.
        """
        took_s = list[float]()
        for _ in range(self._config.cost_repeats):
            began = perf_counter()
            if gather(exchange, [float(knows_plan)], self._timeout_s)[0][0]:
                return
            took_s.append(perf_counter() - began)
        self._take_hosts(hosts_of(exchange.link))
        trips_s = gather(exchange, [min(took_s)], self._timeout_s)
        if max(row[0] for row in trips_s) <= self._config.attaching_gather_s:
            self._own_line = at_once(self._measure_line(self._config.attaching_piece_s), exchange)
        with suppress(GradwireError):  # the choice measures again, and can report the reason
            if self._is_first:
                self._costs.prepare(self._line, self._settings.candidates, count)
        gather(exchange, [0.0], self._timeout_s)  # no rank begins its first step before all are ready

    def _take_hosts(self, hosts: HostMap) -> None:
        self._hosts = hosts
        self._costs = Costs(hosts.ranks_per_machine(self._rank), self._config)

    @property
    def sharing(self) -> float | None:
        """The number of computing threads per core of this rank's machine; None if unknown."""
        if self._hosts is None:
            return None
        return self._hosts.ranks_per_machine(self._rank) * torch.get_num_threads() / cores()

    @property
    def _is_first(self) -> bool:
        """Whether this rank is the first on its kind of host, and measures codecs and frames."""
        return self._hosts is not None and self._rank in self._hosts.firsts()

    @property
    def _line(self) -> Line | None:
        """The link that this rank has measured, if any."""
        return Line(*self._own_line) if any(self._own_line) else None

    def _measure_line(self, budget_s: float) -> Work[tuple[float, ...]]:
        assert self._hosts is not None
        return network.measure_line(self._hosts, self._rank, budget_s, self._config, self._timeout_s)

    def choose(
        self, samples: Samples | None, now: Callable[[], StepTime], present: Plan
    ) -> Work[Trial | None]:
        """Choose a plan and its rivals, and return their trial, which is equal on all ranks.

        ``now`` returns the present step times, which are exchanged after the measurements of this rank.
        Return None if a rank lacks a finite sample.
        """

        def gather_usable(exchange: Exchange) -> list[list[float]]:
            # Only the communication thread knows this, after a pipeline's last samples.
            usable = samples is not None and samples.finite
            return gather(exchange, [float(usable)], self._timeout_s)

        rows = yield Together(_CHOICE, gather_usable)
        if not all(row[0] for row in rows) or samples is None:
            return None
        if self._hosts is None:  # unknown if the run began with an earlier plan
            yield None
            self._take_hosts((yield Together(_CHOICE, lambda exchange: hosts_of(exchange.link))))
        if not self._own_line:
            config = self._config
            share_s = min(config.paced_share * now().step_s, config.longest_piece_s)
            self._own_line = yield from self._measure_line(max(share_s, config.piece_s))
        yield None
        if not self._own_shares or self._shares_of != samples.names:  # the same condition on all ranks
            yield from self._average_norms(samples)
            yield from samples.measure(encodings(self._settings.candidates))
            self._take_shares(samples)
        if self._is_first:
            with suppress(GradwireError):  # rank 0 measures again, and reports the reason
                values = typical(samples.flat, self._config)
                yield from self._costs.time(self._line, self._settings.candidates, values)
        costs = self._costs.row(self._settings.candidates)
        rows = yield from self._gather(_CHOICE, [*_times(now()), *self._own_shares, *costs, *self._own_line])
        yield None
        own: tuple[Decision, ...] = ()
        if self._rank == 0:
            own = yield from self._decide(samples, rows, present)
        found = yield from self._broadcast(_CHOICE, CHOICES, own)
        return Trial(found, present, self._config)

    def _take_shares(self, samples: Samples) -> None:
        """Store the relative errors of all candidates, and mark the sizes of payloads as outdated."""
        self._shares_of = samples.names
        self._own_shares = self._contract.own_errors(samples, self._settings.candidates)
        self._costs.forget_sizes()

    def _gather(self, what: str, row: Sequence[float]) -> Work[list[list[float]]]:
        rows: list[list[float]] = yield Together(what, lambda each: gather(each, row, self._timeout_s))
        return rows

    def _broadcast(self, what: str, record: Record[T], value: object) -> Work[T]:
        found: T = yield Together(what, lambda each: broadcast(each, record, value, self._timeout_s))
        return found

    def _decide(self, samples: Samples, rows: Rows, present: Plan) -> Work[tuple[Decision, ...]]:
        line = network.line_of([each[-network.LINE_FIELDS :] for each in rows])
        ends = _TIMES + len(self._own_shares), -network.LINE_FIELDS
        shares = [each[_TIMES : ends[0]] for each in rows]
        self._costs.take_slowest(self._settings.candidates, [each[ends[0] : ends[1]] for each in rows])
        codecs, may = self._settings.candidates, self._rules.algorithms
        lost = yield from self._contract.errors(shares, samples, codecs, may, present)
        now = self._slowest(rows)
        try:
            return (yield from self._search(samples, line, now, lost, present))
        except GradwireError as error:
            reason = f"{present.codec} over {present.algorithm} {STAYS}: {error}"
            return (Decision(present, now.step_s, now.step_s, now.compute_s, reason),)

    def _slowest(self, rows: Rows) -> StepTime:
        """Return the times of the slowest rank, or of the slowest machine if ranks share its cores.

        Ranks that share cores take turns, so the mean of their times shows how much work the machine has.
        """
        times, sharing = [row[:_TIMES] for row in rows], self.sharing
        if self._hosts is None or sharing is None or sharing <= 1:
            return slowest(times)
        of_machine: dict[bytes, list[Sequence[float]]] = {}
        for machine, row in zip(self._hosts.machines, times, strict=True):
            of_machine.setdefault(machine, []).append(row)
        return slowest([[*map(fmean, zip(*own, strict=True))] for own in of_machine.values()])

    def _search(
        self, samples: Samples, line: Line, now: StepTime, lost: Mapping[str, RelativeErrors], present: Plan
    ) -> Work[tuple[Decision, ...]]:
        workload = Workload(
            (sum(samples.counts),) if self._rules.whole else tuple(reversed(samples.counts)),
            forward_s=now.compute_s - now.backward_s,
            backward_s=now.backward_s,
        )
        involved = dict.fromkeys(codec for each in lost.values() for codec in each.involved(present))
        summed = {1: typical(samples.flat, self._config)}
        if samples.has_sums:
            summed[self._world] = typical(samples.flat_sums, self._config)
        environment = yield from self._costs.environment(line, involved, summed)
        lanes, half = lanes_in(environment, self.most_lanes), self._rules.half
        return (yield from decide(environment, workload, self._world, lost, present, half, lanes))

    def time_turn(self, sync: BetweenSteps, times: StepTimes) -> tuple[float, float]:
        """Return the step time of the slowest rank in the latest turn, and the scatter of its steps."""
        row = [times.median.step_s if len(times) else inf, times.disagreement]
        rows = sync.exchange_now("step times", lambda exchange: gather(exchange, row, self._timeout_s))
        step_s, scatter = max(rows)
        return step_s, scatter

    def look(
        self,
        samples: Samples | None,
        now: Callable[[], StepTime],
        present: Plan,
        decisions: Sequence[tuple[int, Decision]],
        *,
        may_choose: bool,
    ) -> Work[Findings]:
        """Return the slowest rank's step times, and check the present plan against the contract.

        ``may_choose`` says whether enough steps have passed for a new choice because of gradients.
        """
        times = self._slowest((yield from self._gather(_LOOK, _times(now()))))
        if samples is None:
            return Findings(times)
        yield from self._average_norms(samples)
        if samples.finite:
            yield from samples.measure(encodings(present.encodings))
        rows = yield from self._gather(_LOOK, self._contract.row(samples, present))
        names = self._contract.judge(rows, samples, present)
        if names is not None:
            self.has_broken = True
            gentler = yield from self._excepted(samples, present, names, decisions)
            times = self._slowest(
                (yield from self._gather(_LOOK, _times(now())))
            )  # the link may have changed
            if gentler is None:
                return Findings(times, TunerEvent.PLAN_IS_UNSUITED)
            newly = part_of(names - excepted(present, names), samples.size_of)
            many = newly > self._config.wide_share and may_choose
            event = TunerEvent.MANY_NEED_OTHERS if many else TunerEvent.SOME_NEED_OTHERS
            return Findings(times, event, gentler)
        is_finite = all(each[0] for each in rows)  # on all ranks
        if may_choose and is_finite and (yield from self._leaner(samples, present, decisions)):
            return Findings(times, TunerEvent.LEANER_SUITS)
        return Findings(times)

    def _excepted(
        self,
        samples: Samples,
        present: Plan,
        names: frozenset[str],
        decisions: Sequence[tuple[int, Decision]],
    ) -> Work[Decision | None]:
        """Return the decision that gives the parameters in ``names`` other codecs, the same on all ranks.

        Return None if these parameters contain too many values, or if the present codec is not a candidate.
        """
        codecs = self._settings.candidates
        if present.codec not in codecs:  # the plan of the first steps, not a chosen plan
            self.forget_gradients()
            return None
        rows = yield from self._gather_errors(samples, codecs)
        self._take_shares(samples)  # a choice that follows needs no second measurement
        own_gentler: Decision | None = None
        if self._rank == 0:
            errors = self._contract.errors(rows, samples, codecs, [present.algorithm], present)
            lost = (yield from errors)[present.algorithm]
            if decisions and lost.part(names) <= lost.most_excepted:
                gentler = lost.gentler(present.codec, names, self._contract.refused)
                plan = replace(present, codecs=rules_for(gentler))
                reason = in_words(plan.codec, gentler, lost.most) or f"{plan.codec} for all parameters again"
                own_gentler = replace(decisions[-1][1], plan=plan, reason=reason)
        return (yield from self._broadcast(_LOOK, GENTLER, own_gentler))

    def _leaner(
        self, samples: Samples, present: Plan, decisions: Sequence[tuple[int, Decision]]
    ) -> Work[bool]:
        """Return whether a rejected codec now meets the contract and sends far fewer bytes.

        The result is the same on all ranks. A codec that was in use before is not considered again.
        """
        left_out = decisions[-1][1].left_out if decisions else ()
        failed = {str(decision.plan.codec) for _, decision in decisions}
        others = [each for each in self._settings.candidates if str(each) in {*left_out} - failed]
        if not others:
            return False
        codecs = [present.codec, *others]
        rows = yield from self._gather_errors(samples, codecs)
        is_leaner_suited = False
        if self._rank == 0:
            found = yield from self._contract.errors(rows, samples, codecs, self._rules.algorithms, present)
            is_leaner_suited = any(is_leaner(each, present, others) for each in found.values())
        return (yield from self._broadcast(_LOOK, LEANER, is_leaner_suited))

    def _gather_errors(self, samples: Samples, codecs: Sequence[Codec]) -> Work[list[list[float]]]:
        yield None  # at least once, because other ranks may have other codecs left to measure
        yield from samples.measure(encodings(codecs))
        rows = yield from self._gather(_LOOK, self._contract.own_errors(samples, codecs))
        yield None
        return rows

    def _average_norms(self, samples: Samples) -> Work[None]:
        """Average the norms of columns and rows over all ranks, as the reference of relative errors."""
        yield None
        norms = yield from samples.slice_norms()
        yield Together("norms of gradients", lambda exchange: mean(exchange, norms, self._timeout_s))
        samples.compare_with(norms)
        yield None


def _times(now: StepTime) -> list[float]:
    return [now.compute_s, now.backward_s, now.exposed_s]
