"""Record the steps of an attached run, and estimate its step time in any deployment from these steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from gradwire.autotune.estimate import Deployment, Estimate, Estimator
from gradwire.autotune.settings import DEFAULT, Auto, AutoConfig
from gradwire.autotune.steps import (
    RULES,
    Observed,
    RecordedSteps,
    StepTimes,
    joined,
    observe,
    shares,
    stretch,
)
from gradwire.errors import DataError, GradwireError, refuse
from gradwire.exchange import Exchange
from gradwire.fields import of, optional, pair, text
from gradwire.machine import cores, is_inside
from gradwire.plan import Plan
from gradwire.planner.calibration import SEGMENT_NBYTES, excerpt, measure_host, use_threads
from gradwire.planner.loss import noise_scale
from gradwire.planner.request import ASSUMED_LATENCY_S
from gradwire.sync.bucket.observe import NULL_BUCKET, BetweenSteps, BucketObserver, StepCost, StepObserver
from gradwire.sync.messages import Record, broadcast
from gradwire.timing.calibrate import codec_cost, rest_between_segments
from gradwire.timing.line import Line
from gradwire.units import parse_rate

if TYPE_CHECKING:
    from gradwire.sync.bucket.work import BucketWork


def estimator(
    observed: Observed,
    lines: Sequence[Line],
    most_hosts: int,
    *,
    settings: Auto | None = None,
    repeats: int = DEFAULT.careful_repeats,
) -> Estimator:
    """Measure costs for several seconds, and return an estimator for at most ``most_hosts`` hosts.

    Codecs are measured ``repeats`` times on parts of an excerpt that span about as few parameters as the
    segments of a whole gradient. Raises ``DataError`` if no gradients were observed, ``TensorError`` if
    gradients are not finite, and ``LinkError`` if frames cannot be measured.
    """
    if not observed.gradients:
        raise DataError("expected gradients from at least one step, got none; run more steps")
    settings = settings or Auto()
    host = replace(measure_host(cores(), 1), ranks_per_machine=1)
    samples = [excerpt(each) for each in observed.gradients]
    rest_s = max(rest_between_segments(line, SEGMENT_NBYTES) for line in lines)
    with use_threads(observed.threads):
        costs = {
            str(codec): codec_cost(codec, samples, most_hosts, settings.config.part_nbytes, rest_s, repeats)
            for codec in settings.candidates
        }
    return Estimator(observed, host, costs, noise_scale(observed.gradients), settings)


_ESTIMATE = Record(5, "an estimate", pair(optional(of(Estimate, plan=Plan.from_values)), text))
"""The record of an estimate, or of the reason for its absence."""


class Recorder(StepObserver):
    """The observer that records one rank's steps. All ranks record the same steps.

    ``kind`` is ``"DDP"`` or ``"FSDP2"``. The first ``warm_up`` steps aren't timed; excerpts of gradients are
    from the last of these steps, or, if ``warm_up`` is 0, from the first steps. ``counts`` has the floats of
    each bucket of the latest step.
    """

    def __init__(
        self,
        kind: str,
        clock: Callable[[], float] = perf_counter,
        config: AutoConfig = DEFAULT,
        warm_up: int = 0,
    ) -> None:
        self.counts: list[int] = []
        self._kind, self._clock, self._config, self._warm_up = kind, clock, config, warm_up
        self._overlaps, self._times = RULES[kind].overlaps, StepTimes(clock, config)
        self._steps, self._device = 0, torch.device("cpu")
        self._now: list[int] = []
        self._gathers: list[int] = []  # of the latest complete step
        self._gathers_now: list[int] = []
        self._gathers_s = 0.0
        self._excerpt: list[torch.Tensor] = []
        self._excerpts: list[list[torch.Tensor]] = []

    def bucket(self, work: BucketWork) -> BucketObserver:
        """Record a bucket, and return an observer that keeps an excerpt of the bucket if needed."""
        if work.is_bypassed:
            return NULL_BUCKET
        count, number = self.handed_over(work.tensor), len(self._excerpt)
        if count:  # keeps the order of the buckets, because several threads may exchange them
            self._excerpt.append(torch.empty(0))
        return ExcerptKeeper(self._excerpt, number, count)

    def gathered(self, count: int, wait_s: float) -> None:
        """Record an all-gather of ``count`` float weights, and the seconds spent waiting."""
        self._gathers_now.append(count)
        self._gathers_s += wait_s

    def end(self, cost: StepCost) -> None:
        """Record the end of a step, when all its averages have arrived."""
        self._times.end(None if self._overlaps else self._gathers_s + cost.wait_s)
        self._gathers, self._gathers_now, self._gathers_s = self._gathers_now, [], 0.0
        if self._excerpt and self._now == self.counts:  # otherwise DDP has rebuilt its buckets
            self._excerpts.append(self._excerpt)
        self._excerpt, self.counts, self._now = [], self._now, []
        self._steps += 1
        if self._steps < self._warm_up:
            self._times.forget()

    def handed_over(self, gradient: torch.Tensor) -> int:
        """Record a bucket of gradients, and return the number of its floats to keep."""
        place, count = len(self._now), gradient.numel()
        self._now.append(count)
        self._device = gradient.device
        self._times.handed_over(count)
        most, before = self._config.excerpt_steps, self._warm_up - self._steps
        is_left_out = self._warm_up > 0 and not 0 < before <= most
        if is_left_out or len(self._excerpts) == most or place >= len(self.counts):
            return 0
        return shares(self.counts, self._config.excerpt_count)[place]

    def keep(self, excerpt: torch.Tensor) -> None:
        """Keep an excerpt of the latest bucket."""
        self._excerpt.append(excerpt)

    @property
    def recorded(self) -> RecordedSteps:
        """The timed steps, and the latest step's buckets and all-gathers. Reading waits for the device."""
        counts, gathers, gradients = tuple(self.counts), tuple(self._gathers), map(joined, self._excerpts)
        return RecordedSteps(self._kind, self._device, self._times, counts, gathers, tuple(gradients))

    @property
    def is_ready(self) -> bool:
        """Whether enough steps have been recorded, the same on all ranks."""
        return len(self._times) >= self._config.estimate_steps and bool(self._excerpts)

    def estimate(
        self, sync: BetweenSteps, rate: str | float | None = None, hosts: int | None = None
    ) -> Estimate | None:
        """Return an estimate for a deployment, measured by rank 0, or None until enough steps are recorded.

        All ranks call this together between two steps. The link is measured unless ``rate`` is given, and
        ``hosts`` defaults to the number of ranks. Raises ``SpecError`` for invalid arguments, ``DataError``
        on all ranks if rank 0 cannot measure, and ``ExchangeError``.
        """
        line = _line_of(rate, hosts)
        sync.context.check()
        if not self.is_ready:
            return None
        began, timeout_s = self._clock(), sync.context.begin_timeout_s

        def answer(exchange: Exchange) -> tuple[Estimate | None, str]:
            codec = str(sync.context.plan.codec)
            own: tuple[Estimate | None, str] = None, ""
            found = observe(exchange, self.recorded, timeout_s, line, attached=codec)
            if exchange.link.rank == 0:
                own = _answer(found, rate, hosts or found.world, self._config)
            return broadcast(exchange, _ESTIMATE, own, timeout_s)

        estimate, failure = sync.exchange_now(_ESTIMATE.what, answer)
        self._times.leave_out(self._clock() - began)
        if estimate is None:
            raise DataError(f"no estimate: {failure}")
        return estimate


class ExcerptKeeper(BucketObserver):
    """The observer that copies an excerpt of a bucket on the communication thread."""

    wants_alone = True

    def __init__(self, excerpts: list[torch.Tensor], number: int, count: int) -> None:
        self._excerpts, self._number, self._count = excerpts, number, count

    def before(self, values: torch.Tensor) -> None:
        """Keep ``count`` floats of this rank's values, if any."""
        if self._count:
            self._excerpts[self._number] = joined([stretch(values, self._count)])


def _line_of(rate: object, hosts: object) -> Line | None:
    """Return a link of this rate, or None to measure the link. Raises ``SpecError`` for invalid arguments."""
    if not (rate is None or isinstance(rate, str | int | float)) or isinstance(rate, bool):
        refuse("a rate such as '10gbit', or bytes per second", rate, "omit rate to measure the link")
    found = parse_rate(rate) if isinstance(rate, str) else rate
    line = Line(ASSUMED_LATENCY_S, float("inf") if found is None else found)
    if hosts is not None:
        Deployment("", line, hosts)  # type: ignore[arg-type]  # Deployment checks the type
    return None if rate is None else line


def _answer(
    seen: Observed, rate: str | float | None, hosts: int, config: AutoConfig
) -> tuple[Estimate | None, str]:
    """Return an estimate and "", or None and the error message.

    Outside a testbed, each host is assumed to be a separate machine, unless the deployment is the observed
    one.
    """
    assert seen.line is not None, "the link was measured, or has the given rate"
    is_here = rate is None and hosts == seen.world
    sharing = seen.ranks_per_machine if is_here else hosts if is_inside() else 1
    try:
        name = "this one" if rate is None else str(rate)
        place = Deployment(name, seen.line, hosts, sharing, is_here)
        settings, repeats = Auto(config=config), config.estimate_repeats
        most_hosts = max(hosts, seen.world)
        measured = estimator(seen, [seen.line], most_hosts, settings=settings, repeats=repeats)
        return measured.at(place), ""
    except GradwireError as error:
        return None, str(error)
