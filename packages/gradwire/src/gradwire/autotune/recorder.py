"""Records the steps of an attached run from the moment on when somebody asks for an estimate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import torch

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.autotune.estimate import Deployment, Estimate, Estimator
from gradwire.autotune.observed import Observed, compare, joined, shares, stretch
from gradwire.autotune.saved import broadcast
from gradwire.autotune.settings import Auto
from gradwire.autotune.step_times import StepTimes
from gradwire.costs import ExchangeCost
from gradwire.errors import DataError, GradwireError, SpecError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest, Reducer
from gradwire.machine import cores, is_inside
from gradwire.planner.calibration import SEGMENT_NBYTES, excerpt, measure_host, use_threads
from gradwire.planner.explain import name_coding
from gradwire.planner.loss import noise_scale
from gradwire.planner.request import ASSUMED_LATENCY_S
from gradwire.tables import Column, Table, figure
from gradwire.timing.calibrate import codec_cost, rest_between_segments
from gradwire.timing.line import Line
from gradwire.units import counted, format_duration, format_size, parse_rate

# Measure what an estimate needs beside steps: what frames and codecs cost, what is lost, and the noise.


def estimator(
    observed: Observed,
    lines: Sequence[Line],
    most_hosts: int,
    *,
    settings: Auto | None = None,
    repeats: int = DEFAULT.careful_repeats,
) -> Estimator:
    """Return what estimates steps on such lines, up to so many hosts; measuring takes some seconds.

    Each codec is measured ``repeats`` times, on ``part_nbytes`` of an excerpt at once: so much holds about as
    few parameters as segments do of the gradient.

    Raises ``DataError`` where no gradients were observed, ``TensorError`` for gradients that are not finite,
    and ``LinkError`` where frames cannot be measured.
    """
    if not observed.gradients:
        raise DataError(
            "no gradients were observed, without which nothing is known of codecs; run more steps"
        )
    settings = Auto() if settings is None else settings
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


class Recorder:
    """Notes one rank's steps; all ranks record the same ones.

    Parameters
    ----------
    kind
        ``"DDP"`` or ``"FSDP2"``.
    clock
        What times steps, in seconds.
    config
        The thresholds of the run.
    """

    def __init__(
        self, kind: str, clock: Callable[[], float] = perf_counter, config: AutoConfig = DEFAULT
    ) -> None:
        self._kind, self._clock, self._config = kind, clock, config
        self._times = StepTimes(clock, config)
        self._counts: list[int] = []
        self._now: list[int] = []
        self._excerpt: list[torch.Tensor] = []
        self._excerpts: list[torch.Tensor] = []
        self._gathers: list[int] = []
        self._last_gathers: tuple[int, ...] = ()
        self._wait_s = 0.0
        self._device = "cpu"

    def handed_over(self, count: int, device: torch.device) -> None:
        """Note that backward has a bucket of ``count`` floats ready."""
        self._now.append(count)
        self._device = device.type
        self._times.handed_over(count)

    def sampled(self, reducer: Reducer) -> Reducer:
        """Return what exchanges a bucket by ``reducer``, and keeps an excerpt of it while those are few."""
        place = len(self._now)
        if len(self._excerpts) == self._config.excerpt_steps or place >= len(self._counts):
            return reducer
        excerpt_count = shares(self._counts, self._config.excerpt_count)[place]
        return RecordedBucket(reducer, self._excerpt, excerpt_count).run

    def scattered(self, gradient: torch.Tensor, device: torch.device) -> None:
        """Note FSDP's gradients of a module, on the host, which are to be exchanged while backward waits."""
        place = len(self._now)
        if len(self._excerpts) < self._config.excerpt_steps and place < len(self._counts):
            self._excerpt.append(stretch(gradient, shares(self._counts, self._config.excerpt_count)[place]))
        self._now.append(gradient.numel())
        self._device = device.type

    def gathered(self, count: int) -> None:
        """Note that ``count`` floats of weights were gathered."""
        self._gathers.append(count)

    def waited(self, seconds: float) -> None:
        """Note that the step waited for an exchange."""
        self._wait_s += seconds

    def took(self) -> None:
        """Note that a step is over, in place of ``end``, whose waiting was noted."""
        self._times.took(self._wait_s)
        self._last_gathers = tuple(self._gathers)
        self._gathers, self._wait_s = [], 0.0
        self._keep()

    def end(self) -> None:
        """Note that a step's averages are all there."""
        self._times.end()
        self._keep()

    def _keep(self) -> None:
        if self._excerpt and self._now == self._counts:  # else DDP has cut its buckets anew
            self._excerpts.append(joined(self._excerpt))
        self._excerpt, self._counts, self._now = [], self._now, []

    @property
    def ready(self) -> bool:
        """Whether enough steps have been recorded."""
        return len(self._times) >= self._config.estimate_steps and bool(self._excerpts)

    def answer(
        self, exchange: Exchange, rate: str | float | None, hosts: int | None, timeout_s: float
    ) -> str:
        """Return rank 0's estimate, on all ranks, which call this together, for ``read_answer``.

        Where rank 0 could not measure, that is the answer: the exchange goes on. Raises ``ExchangeError``.
        """
        if not self.ready:
            return ""
        began = self._clock()
        together = compare(
            exchange,
            self._times.median,
            timeout_s,
            with_line=rate is None,
            scatter=self._times.disagreement,
        )
        text = ""
        if exchange.link.rank == 0:
            line = _told(rate) if together.line is None else together.line
            times = together.times
            world, sharing = exchange.link.world, together.ranks_per_machine
            observed = Observed(
                self._kind,
                self._device,
                world,
                sharing,
                torch.get_num_threads(),
                len(self._times),
                times.compute_s,
                times.backward_s,
                times.exposed_s,
                tuple(self._counts),
                self._last_gathers,
                line=line,
                gradients=tuple(self._excerpts),
                attached=str(exchange.plan.codec),
                scatter=together.scatter,
            )
            text = _text(observed, _place(rate, line, hosts or world, world, sharing), self._config)
        text = broadcast(exchange, text, timeout_s)
        self._times.leave_out(self._clock() - began)
        return text


def read_answer(text: str) -> Estimate | None:
    """Return the estimate of ``Recorder.answer``; None before there is one. Raises ``DataError``."""
    if text.startswith(_FAILED):
        raise DataError(text)
    return Estimate.from_json(text) if text else None


class RecordedBucket:
    """Exchanges one bucket as ``inner`` does, and keeps an excerpt of what this rank had in it.

    That runs on the communication thread, so training does not wait for a device.
    """

    def __init__(self, inner: Reducer, kept: list[torch.Tensor], count: int) -> None:
        self._inner, self._kept, self._count = inner, kept, count

    def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
        """Do what ``Exchange.run`` does."""
        self._kept.append(joined([stretch(tensor, self._count)]))
        return self._inner(tensor, request)


def check_asked(rate: object, hosts: object) -> None:
    """Raise ``SpecError`` unless an estimate can be for this rate and number of hosts."""
    if not (rate is None or isinstance(rate, str | int | float)) or isinstance(rate, bool):
        raise SpecError(f"rate must be one like '10gbit', or bytes per second, but is {rate!r}")
    line = _told(rate if rate is not None else "unlimited")
    if hosts is not None:
        Deployment("", line, hosts)  # type: ignore[arg-type]  # that is what it checks


def _told(rate: str | float | None) -> Line:
    found = parse_rate(rate) if isinstance(rate, str) else rate
    return Line(ASSUMED_LATENCY_S, float("inf") if found is None else found)


def _place(rate: str | float | None, line: Line, hosts: int, world: int, sharing: int) -> Deployment:
    """Return where to look: elsewhere each rank has a machine of its own, unless all share a testbed's."""
    is_here = rate is None and hosts == world
    ranks = sharing if is_here else hosts if is_inside() else 1
    return Deployment("this one" if rate is None else str(rate), line, hosts, ranks, is_here)


def _text(observed: Observed, place: Deployment, config: AutoConfig) -> str:
    """Return an estimate as JSON; where it fails, why."""
    lines: Sequence[Line] = [place.line]
    try:
        most_hosts, settings = max(place.hosts, observed.world), Auto(config=config)
        repeats = config.estimate_repeats
        measured = estimator(observed, lines, most_hosts, settings=settings, repeats=repeats)
        return json.dumps(measured.at(place).values())
    except GradwireError as error:
        return f"{_FAILED}{error}"


# Estimates as a table, and as a record.

LEGEND = (
    "All times are predicted by one model. gain: how many times as fast a step is; to loss: how many times "
    "as fast training comes to the same loss, with the extra steps that follow from the gradients' noise. "
    "Ranges follow from how much the observed steps scatter, and from how far the model is off for them; "
    "noisy: by more than 15 %. limit: what takes most of the step with gradwire; CPU: codecs and frames."
)


def report(
    observed: Observed, estimates: Sequence[Estimate], predicted_s: float | None = None
) -> list[str | Table]:
    """Return what was observed, and a row for each place.

    ``predicted_s`` is what the step that was observed would take as predicted, which says what to think of
    the other predictions.
    """
    return [observation(observed) + _checked(observed, predicted_s), "", table(estimates), LEGEND]


def _checked(observed: Observed, predicted_s: float | None) -> str:
    if predicted_s is None:
        return ""
    off = 100 * (predicted_s / observed.step_s - 1)
    return (
        f" Predicted like the steps below, this one would take {format_duration(predicted_s)} ({off:+.0f} %)."
    )


def observation(observed: Observed) -> str:
    """Return what the run did without gradwire, in a sentence or two."""
    nbytes = 4 * sum(observed.counts)
    line = "" if observed.line is None else f"; the slowest line carries {observed.line}"
    return (
        f"{observed.kind} on {observed.world} ranks, {observed.ranks_per_machine} of them on this machine, "
        f"{counted(observed.steps, 'step')}: {format_duration(observed.step_s)} a step, of which "
        f"{format_duration(observed.compute_s)} are computation and {format_duration(observed.exposed_s)} "
        f"waiting. {format_size(nbytes)} of gradients in {counted(len(observed.counts), 'bucket')}{line}."
    )


def gain(estimate: Estimate, ratio: float) -> str:
    """Return one of an estimate's ratios as a range, such as ``1.2-1.4x``, or ``noisy``."""
    if estimate.is_noisy:
        return "noisy"
    low, high = (f"{each:.3g}" for each in (ratio / (1 + estimate.spread), ratio * (1 + estimate.spread)))
    return f"{low}x" if low == high else f"{low}-{high}x"


def table(estimates: Sequence[Estimate]) -> Table:
    """Return a row for each estimate."""
    slowest_s = max(max(each.plain_s, each.step_s) for each in estimates)
    unit, scale = ("s", 1.0) if slowest_s >= 100 else ("ms", 1e3)
    columns = (
        Column.of_text("network"),
        Column("hosts"),
        Column(estimates[0].kind, unit),
        Column.of_text("plan"),
        Column("step", unit),
        Column("gain"),
        Column("to loss"),
        Column.of_text("limit"),
    )
    rows = [
        (
            each.network,
            str(each.hosts),
            figure(scale * each.plain_s),
            f"{name_coding(each.plan.encoding)} {each.plan.algorithm}",
            figure(scale * each.step_s),
            gain(each, each.speedup),
            gain(each, each.speedup_to_loss),
            str(each.limit),
        )
        for each in estimates
    ]
    return Table(columns, rows)
