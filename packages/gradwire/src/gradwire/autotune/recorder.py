"""Records the steps of an attached run from the moment on when somebody asks for an estimate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.autotune.estimate import Deployment, Estimate, Estimator
from gradwire.autotune.observed import FORMS, Observed, RecordedSteps, joined, observe, shares, stretch
from gradwire.autotune.settings import Auto
from gradwire.autotune.step_times import StepTimes
from gradwire.errors import DataError, GradwireError, SpecError, shown
from gradwire.exchange import Exchange
from gradwire.machine import cores, is_inside
from gradwire.planner.calibration import SEGMENT_NBYTES, excerpt, measure_host, use_threads
from gradwire.planner.loss import noise_scale
from gradwire.planner.request import ASSUMED_LATENCY_S
from gradwire.sync.agreement import broadcast
from gradwire.sync.observe import NULL_BUCKET, BetweenSteps, BucketObserver, StepCost, StepObserver
from gradwire.timing.calibrate import codec_cost, rest_between_segments
from gradwire.timing.line import Line
from gradwire.units import parse_rate

if TYPE_CHECKING:
    from gradwire.sync.work import BucketWork

# Measure what an estimate needs beside steps: what frames and codecs cost, what is lost, and the noise.


def estimator(
    observed: Observed,
    lines: Sequence[Line],
    most_hosts: int,
    *,
    settings: Auto | None = None,
    repeats: int = DEFAULT.careful_repeats,
) -> Estimator:
    """Return an estimator for such lines and at most ``most_hosts`` hosts, after some seconds of measuring.

    Each codec is measured ``repeats`` times, on ``part_nbytes`` of an excerpt at once: so much holds about as
    few parameters as segments do of the gradient.

    Raises ``DataError`` where no gradients were observed, ``TensorError`` for gradients that are not finite,
    and ``LinkError`` where frames cannot be measured.
    """
    if not observed.gradients:
        raise DataError(
            "no gradients were observed, without which nothing is known of codecs; run more steps"
        )
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


_FAILED = "no estimate: "
"""Begins the text of an error, in place of an estimate."""


class Recorder(StepObserver):
    """Records one rank's steps; all ranks record the same ones.

    Parameters
    ----------
    kind
        ``"DDP"`` or ``"FSDP2"``.
    warm_up
        The steps before the first whose time counts; their last ones give the excerpts. With 0, all steps
        count, and the first ones give the excerpts.

    Attributes
    ----------
    counts
        The floats of each bucket of the latest step.
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
        self._overlaps, self._times = FORMS[kind].overlaps, StepTimes(clock, config)
        self._steps, self._device = 0, torch.device("cpu")
        self._now: list[int] = []
        self._gathers: list[int] = []  # of the latest step, and of the one under way
        self._gathers_now: list[int] = []
        self._gathers_s = 0.0
        self._excerpt: list[torch.Tensor] = []
        self._excerpts: list[list[torch.Tensor]] = []

    def bucket(self, work: BucketWork) -> BucketObserver:
        """Note a bucket; return what keeps an excerpt of it while those are few."""
        if work.is_bypassed:
            return NULL_BUCKET
        return ExcerptKeeper(self._excerpt, self.handed_over(work.tensor))

    def gathered(self, count: int, wait_s: float) -> None:
        """Note that ``count`` floats of weights were gathered, which forward or backward waited for."""
        self._gathers_now.append(count)
        self._gathers_s += wait_s

    def end(self, cost: StepCost) -> None:
        """Note that a step's averages are all there."""
        self._times.end(None if self._overlaps else self._gathers_s + cost.wait_s)
        self._gathers, self._gathers_now, self._gathers_s = self._gathers_now, [], 0.0
        if self._excerpt and self._now == self.counts:  # else DDP has cut its buckets anew
            self._excerpts.append(self._excerpt)
        self._excerpt, self.counts, self._now = [], self._now, []
        self._steps += 1
        if self._steps < self._warm_up:
            self._times.forget()

    def handed_over(self, gradient: torch.Tensor) -> int:
        """Note a bucket of gradients; return how many floats of it to keep, 0 for none."""
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
        """Keep an excerpt of the bucket that was handed over last."""
        self._excerpt.append(excerpt)

    @property
    def recorded(self) -> RecordedSteps:
        """The steps whose times count, and what the latest one exchanged; this waits for a device."""
        counts, gathers, gradients = tuple(self.counts), tuple(self._gathers), map(joined, self._excerpts)
        return RecordedSteps(self._kind, self._device, self._times, counts, gathers, tuple(gradients))

    @property
    def is_ready(self) -> bool:
        """Whether enough steps have been recorded; the same on all ranks."""
        return len(self._times) >= self._config.estimate_steps and bool(self._excerpts)

    def estimate(
        self, sync: BetweenSteps, rate: str | float | None = None, hosts: int | None = None
    ) -> Estimate | None:
        """Return an estimate for another deployment, measured by rank 0; None before it is ready.

        All ranks call it together between two steps. ``rate`` is one like ``"10gbit"``, or bytes per second;
        without it the line is measured. ``hosts`` are as many as there are ranks by default. Raises
        ``SpecError``, ``DataError`` on all ranks if rank 0 cannot measure, and ``ExchangeError``.
        """
        line = _line_of(rate, hosts)
        sync.context.check()
        if not self.is_ready:
            return None
        began, timeout_s = self._clock(), sync.context.begin_timeout_s

        def answer(exchange: Exchange) -> str:
            codec, text = str(sync.context.plan.codec), ""
            found = observe(exchange, self.recorded, timeout_s, line, attached=codec)
            if exchange.link.rank == 0:
                text = _answer(found, rate, hosts or found.world, self._config)
            return broadcast(exchange, text, timeout_s)

        text = sync.exchange_now("an estimate", answer)
        self._times.leave_out(self._clock() - began)
        if text.startswith(_FAILED):
            raise DataError(text)
        return Estimate.from_json(text)


class ExcerptKeeper(BucketObserver):
    """Keeps an excerpt of a bucket; on the communication thread, so training does not wait for a device."""

    wants_alone = True

    def __init__(self, kept: list[torch.Tensor], count: int) -> None:
        self._kept, self._count = kept, count

    def before(self, values: torch.Tensor) -> None:
        """Keep ``count`` floats of this rank's values, if any."""
        if self._count:
            self._kept.append(joined([stretch(values, self._count)]))


def _line_of(rate: object, hosts: object) -> Line | None:
    """Return the line of a rate, or None if it is to be measured.

    Raises ``SpecError`` unless an estimate can be for this rate and number of hosts.
    """
    if not (rate is None or isinstance(rate, str | int | float)) or isinstance(rate, bool):
        raise SpecError(
            f"expected a rate such as '10gbit', or bytes per second, got {shown(rate)}; leave it out to "
            "measure the line"
        )
    found = parse_rate(rate) if isinstance(rate, str) else rate
    line = Line(ASSUMED_LATENCY_S, float("inf") if found is None else found)
    if hosts is not None:
        Deployment("", line, hosts)  # type: ignore[arg-type]  # that is what it checks
    return None if rate is None else line


def _answer(seen: Observed, rate: str | float | None, hosts: int, config: AutoConfig) -> str:
    """Return an estimate as JSON, or the reason why there is none.

    Elsewhere each rank has a machine of its own, unless all share a testbed's.
    """
    assert seen.line is not None, "it was measured, or is the rate's"
    is_here = rate is None and hosts == seen.world
    sharing = seen.ranks_per_machine if is_here else hosts if is_inside() else 1
    try:
        name = "this one" if rate is None else str(rate)
        place = Deployment(name, seen.line, hosts, sharing, is_here)
        settings, repeats = Auto(config=config), config.estimate_repeats
        most_hosts = max(hosts, seen.world)
        measured = estimator(seen, [seen.line], most_hosts, settings=settings, repeats=repeats)
        return json.dumps(measured.at(place).values())
    except GradwireError as error:
        return f"{_FAILED}{error}"
