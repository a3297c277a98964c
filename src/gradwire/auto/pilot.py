"""What a run does about its plan from step to step: measure, decide, watch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Protocol, TypeVar

import torch

from gradwire.auto import network, saved
from gradwire.auto.decide import Decision, decide
from gradwire.auto.messages import broadcast, gather
from gradwire.auto.samples import Samples
from gradwire.auto.settings import Auto
from gradwire.auto.step_times import KEPT, StepTime, StepTimes
from gradwire.auto.watch import Watch
from gradwire.codecs import Codec
from gradwire.collectives import backend
from gradwire.errors import GradwireError, LinkError
from gradwire.exchange import Exchange
from gradwire.machine import cores
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.inputs.calibration import SEGMENT_NBYTES, excerpt
from gradwire.planner.inputs.cluster import Cluster
from gradwire.planner.inputs.threads import use_threads
from gradwire.planner.inputs.workload import Workload
from gradwire.planner.search.candidates import ALGORITHMS
from gradwire.timing.measure.calibrate import codec_cost, rest_between_segments
from gradwire.timing.replay.environment import CodecCost, Environment
from gradwire.timing.replay.host import HostCost
from gradwire.timing.replay.line import Line

WARM_UP = 5
"""The steps before the first decision: a first one, and what times and a sample need."""
RESAMPLE = 12 * KEPT
"""Every so many steps, what the codec in use loses is measured again."""

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
        Those of the model's parameters.
    timeout_s
        How long a rank waits for the others.
    clock
        What times steps, in seconds.

    Attributes
    ----------
    decisions
        The steps before which plans were chosen, and what was decided.
    """

    def __init__(
        self,
        settings: Auto,
        rank: int,
        world: int,
        shapes: Sequence[Sequence[int]],
        timeout_s: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.decisions: list[tuple[int, Decision]] = []
        self._settings, self._rank, self._world, self._timeout_s = settings, rank, world, timeout_s
        self._key = saved.fingerprint(shapes, world)
        self._clock, self._times, self._watch = clock, StepTimes(clock), Watch()
        self._samples: Samples | None = None
        self._decide_at, self._delay = WARM_UP + 1, 1
        self._host: HostCost | None = None

    def begin(self, step: int, present: Plan, ask: Ask) -> Plan | None:
        """Return the plan from ``step`` on, counted from 1 up, or None where the present one stays.

        All ranks call it before each step. Raises ``ExchangeError``.
        """
        if self._world == 1:
            return None
        began, chosen = self._clock(), None
        if step == 1:
            chosen = self._start(ask)
        elif step == self._decide_at:
            chosen = self._decide(step, present, ask)
        elif step > self._decide_at and (step - self._decide_at) % KEPT == 0:
            self._look(step, present, ask)
        self._samples = Samples() if self._samples_at(step) else None
        self._times.leave_out(self._clock() - began)
        return chosen

    @property
    def samples(self) -> Samples | None:
        """Where this step's buckets are to be copied, if it is sampled."""
        return self._samples

    def handed_over(self, count: int) -> None:
        """Note that backward has a bucket of ``count`` floats ready."""
        self._times.handed_over(count)

    def end(self) -> None:
        """Note that a step's averages are all there."""
        self._times.end()

    def _samples_at(self, step: int) -> bool:
        due = step > self._decide_at and (step + 1 - self._decide_at) % RESAMPLE == 0
        return due or step + 1 == self._decide_at

    def _start(self, ask: Ask) -> Plan | None:
        """Adopt what a run before has decided, if rank 0 has that."""
        place = self._settings.place if self._rank == 0 else None
        found = None if place is None else saved.load(place, self._key)
        text = "" if found is None else found.to_json()
        text = ask("the plan of an earlier run", lambda exchange: broadcast(exchange, text, self._timeout_s))
        if not text:
            return None
        decision = Decision.from_json(text)
        self._decide_at = 1
        return self._adopt(1, decision, "as in an earlier run: ")

    def _decide(self, step: int, present: Plan, ask: Ask) -> Plan | None:
        text = ask("the choice of a plan", lambda exchange: self._choose(exchange, present))
        if not text:  # a sample was empty, or not finite; a later one may be better
            self._decide_at, self._delay = step + self._delay, min(2 * self._delay, RESAMPLE)
            return None
        return self._adopt(step, Decision.from_json(text), "")

    def _adopt(self, step: int, decision: Decision, why: str) -> Plan:
        self.decisions.append((step, decision))
        self._watch.decided(step)
        self._times.forget()
        if self._rank == 0:
            _LOG.info("from step %d on, %s%s", step, why, decision.reason)
            if self._settings.place is not None:
                saved.save(self._settings.place, self._key, decision)
        return decision.plan

    def _look(self, step: int, present: Plan, ask: Ask) -> None:
        """Let all ranks compare what steps take, and lose, with what they took; maybe decide once more."""
        now, lost = self._times.median, 0.0
        if self._samples is not None and self._samples.finite:
            lost = self._samples.lost(present.encoding)
        row = [now.compute_s, now.backward_s, now.exposed_s, lost]
        rows = ask("the times of steps", lambda exchange: gather(exchange, row, self._timeout_s))
        broken = max(each[3] for each in rows) > self._settings.max_lost_norm
        if self._watch.changed(step, _slowest(rows)) or (broken and not present.encoding.EXACT):
            self._decide_at = step + 1

    def _choose(self, exchange: Exchange, present: Plan) -> str:
        """Return a decision as JSON, the same on all ranks; empty where nothing can be measured yet."""
        samples, now = self._samples, self._times.median
        usable = samples is not None and samples.finite
        if not all(row[0] for row in gather(exchange, [float(usable)], self._timeout_s)) or samples is None:
            return ""
        codecs = self._settings.candidates
        row = [now.compute_s, now.backward_s, now.exposed_s, *map(samples.lost, codecs)]
        row += network.own_line(exchange.link)
        rows = gather(exchange, row, self._timeout_s)
        line = network.line_of([each[-network.LINE_FIELDS :] for each in rows])
        shares = (max(each[3 + i] for each in rows) for i in range(len(codecs)))
        lost = dict(zip(codecs, shares, strict=True))
        text = ""
        if self._rank == 0:
            text = self._decided(exchange, samples, line, _slowest(rows), lost, present).to_json()
        return broadcast(exchange, text, self._timeout_s)

    def _decided(
        self,
        exchange: Exchange,
        samples: Samples,
        line: Line,
        now: StepTime,
        lost: dict[Codec, float],
        present: Plan,
    ) -> Decision:
        """Return what rank 0 decides; where that fails, all stay with what they have."""
        algorithms = [each for each in ALGORITHMS if each != backend.NAME or exchange.link.HAS_ALL_REDUCE]
        workload = Workload(
            tuple(reversed(samples.counts)),
            forward_s=now.compute_s - now.backward_s,
            backward_s=now.backward_s,
        )
        cluster = Cluster(self._world, line)
        try:
            environment = Environment(
                line, _costs(lost, samples.flat, line, cluster.threads), self._host_cost(cluster)
            )
            return decide(
                environment, workload, self._world, lost, self._settings.max_lost_norm, present, algorithms
            )
        except GradwireError as error:
            reason = f"{present.codec} over {present.algorithm} stays, since no plan could be chosen: {error}"
            return Decision(present, now.step_s, now.step_s, now.compute_s, reason)

    def _host_cost(self, cluster: Cluster) -> HostCost:
        """Measure once what frames cost."""
        if self._host is None:
            try:
                self._host, _ = cluster.find_host()
            except LinkError:  # no local network
                sharing = self._world if cluster.is_shared else 1
                self._host = HostCost(cores=cores(), ranks_per_machine=sharing)
        return self._host


def _costs(codecs: Iterable[Codec], sample: torch.Tensor, line: Line, threads: int) -> dict[str, CodecCost]:
    part, rest_s = (
        excerpt(sample, SEGMENT_NBYTES // FLOAT_NBYTES),
        rest_between_segments(line, SEGMENT_NBYTES),
    )
    with use_threads(threads):
        return {str(each): codec_cost(each, [part], 1, SEGMENT_NBYTES, rest_s) for each in codecs}


def _slowest(rows: Sequence[Sequence[float]]) -> StepTime:
    """Return the times of the rank that computes longest, for which the others wait, and the least wait."""
    compute_s = max(row[0] for row in rows)
    backward_s = max(row[1] for row in rows)
    return StepTime(compute_s, min(backward_s, compute_s), min(row[2] for row in rows))
