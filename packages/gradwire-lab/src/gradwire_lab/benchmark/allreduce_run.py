"""``gradwire bench allreduce``: its options, its ranks' work, and its record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from gradwire import _native
from gradwire.costs import ExchangeCost
from gradwire.errors import JobError
from gradwire.exchange import Exchange
from gradwire.launch.launched import is_launched
from gradwire.launch.local import RankContext, Task
from gradwire.line_rate.display import progress
from gradwire.line_rate.ranks import Ranks, check_network, is_speaker, met_ranks, perform
from gradwire.line_rate.run import Outputs
from gradwire.links import Link
from gradwire.machine import described
from gradwire.plan import FLOAT_NBYTES, SEGMENT_UNIT_NBYTES, Plan
from gradwire.records import make_record
from gradwire.timing.line import Line, LineRate, fit
from gradwire.timing.line_rate import QUICK, measure
from gradwire.units import format_duration, format_size
from gradwire_lab.benchmark.allreduce import (
    SCHEMA,
    TORCH,
    Configuration,
    Result,
    check_all_reduce,
    slowest,
    time_calls,
    torch_times,
)
from gradwire_lab.benchmark.data import Data, DataSpec, load_gradient
from gradwire_lab.benchmark.page import allreduce_page, draw_allreduce, show_allreduce

LEAST_ITERATIONS = 3
LEAST_COPIES = 5
"""The minimum number of copies of a bucket in a rank's memory, with float64 copies for the exact sum."""


@dataclass(frozen=True)
class AllReduceOptions(Outputs):
    """The options of an all-reduce benchmark, the same on all ranks except for files.

    At least 3 iterations run, and more within ``most_s``. ``line`` is from ``measured_file``, or measured.
    """

    algorithms: tuple[str, ...] = ("ring",)
    codecs: tuple[str, ...] = ("identity",)
    sizes: tuple[int, ...] = (1 << 24,)
    segments: tuple[int, ...] = (Plan.segment_nbytes,)
    worlds: tuple[int, ...] = (2,)
    torch_too: bool = True
    iterations: int = 20
    warmup: int = 3
    most_s: float = 20.0
    pause_s: float = 0.0
    data: DataSpec = field(default_factory=lambda: DataSpec.parse("laplace"))
    measured_file: Path | None = None
    measures_line: bool = True
    line: Line | None = None
    link: str | None = None
    timeout_s: float = 60.0

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations to measure with each number of ranks, in order."""
        ours = [
            Configuration(algorithm, codec, nbytes, segment)
            for nbytes in self.sizes
            for algorithm in self.algorithms
            for codec in self.codecs
            for segment in self.segments
        ]
        if not self.torch_too or self.link is not None:  # torch's own connections can't be throttled
            return tuple(ours)
        torchs = [Configuration(TORCH, "identity", nbytes) for nbytes in self.sizes]
        return tuple(sorted([*torchs, *ours], key=lambda each: each.nbytes))


@dataclass(frozen=True)
class LineMeasured:
    """The event that the link's rate and latency have been measured."""

    line: Line


Event = LineMeasured | Result


def run_allreduce(options: AllReduceOptions) -> list[Result]:
    """Measure, print, write, and return the results (none except on rank 0). Raises ``GradwireError``."""
    check(options)
    if options.measured_file is not None:
        options = replace(options, line=LineRate.load(options.measured_file).line)
    if not is_speaker():
        perform(_task(options, options.worlds[0]), lambda _: None)
        return []
    options, results = _measure(options)
    show_allreduce(results, options.line, str(options.data), options.link)
    options.write_outputs(
        lambda: _describe(options, results), allreduce_page, lambda: draw_allreduce(results)
    )
    return results


def check(options: AllReduceOptions) -> None:
    """Raise ``GradwireError`` for options that cannot work, before any process starts."""
    for world in options.worlds:
        check_network(world, options.link, options.timeout_s)
    for nbytes in options.sizes:
        if nbytes % FLOAT_NBYTES:
            raise JobError(
                f"expected multiples of {FLOAT_NBYTES} bytes (float32) for --sizes, got {nbytes}; round up"
            )
    _check_memory(max(options.worlds), max(options.sizes))
    for segment in options.segments:
        if segment % SEGMENT_UNIT_NBYTES:
            raise JobError(
                f"expected multiples of {SEGMENT_UNIT_NBYTES} bytes for --segments, got {segment}; round up"
            )
    for configuration in options.configurations:
        if configuration.algorithm != TORCH:
            _ = configuration.plan
    if not 1 <= options.iterations <= 1_000_000 or not 0 <= options.warmup <= 1_000_000:
        raise JobError(
            "expected --iterations from 1 to 1000000 and --warm-up from 0 to 1000000, got "
            f"{options.iterations} and {options.warmup}; pass e.g. --iterations 20 --warm-up 3"
        )
    if not 0 < options.most_s <= 86_400 or not 0 <= options.pause_s <= 60:
        raise JobError(
            "expected --max-time above 0 and at most 86400 seconds, and --pause from 0 to 60 seconds, got "
            f"{options.most_s:g} and {options.pause_s:g}; pass e.g. --max-time 20s --pause 0"
        )
    if options.data.file is not None:
        load_gradient(options.data.file)
    _native.target()  # raises an error if GRADWIRE_TARGET is invalid
    _native.threads()  # raises an error if GRADWIRE_THREADS is invalid
    options.check_outputs()


def _check_memory(world: int, nbytes: int) -> None:
    """Raise ``JobError`` if local ranks need more memory than the machine has: the kernel would kill one."""
    needed, there = world * nbytes * LEAST_COPIES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not is_launched() and needed > there:
        raise JobError(
            f"expected at most {format_size(there)} of memory on this machine, got {format_size(needed)} "
            f"for {world} ranks with {format_size(nbytes)} each; choose smaller sizes, or fewer workers"
        )


def work(context: RankContext[Event], options: AllReduceOptions) -> None:
    """Measure every configuration as one rank. Rank 0 reports the results."""
    data = Data(options.data, max(options.sizes) // FLOAT_NBYTES)
    with met_ranks(context, options.timeout_s) as ranks:
        link = ranks.connect(options.link)
        try:
            line = options.line
            if line is None and options.measures_line:
                context.doing = "measuring the link"
                line = _measure_line(ranks, link)
                if line is not None:
                    context.report(LineMeasured(line))
            for configuration in options.configurations:
                context.doing = str(configuration)
                result = _measure_one(configuration, options, ranks, link, data)
                if ranks.rank == 0:
                    context.report(replace(result, line=line))
        finally:
            link.close()


def _measure_one(
    configuration: Configuration, options: AllReduceOptions, ranks: Ranks, link: Link, data: Data
) -> Result:
    all_reduce = _reducer(configuration, ranks, link)
    checked = check_all_reduce(all_reduce, configuration, data, ranks.rank, ranks.world, ranks.gather)
    affordable = max(LEAST_ITERATIONS, int(options.most_s / checked.first_s))
    iterations, warmup = min(options.iterations, affordable), min(options.warmup, affordable)
    bucket = data.bucket(ranks.rank, configuration.count)
    seconds = time_calls(all_reduce, bucket, iterations, warmup, ranks.barrier, options.pause_s)
    return Result(configuration, ranks.world, slowest(seconds, ranks.gather), checked)


def _reducer(
    configuration: Configuration, ranks: Ranks, link: Link
) -> Callable[[torch.Tensor], ExchangeCost]:
    def by_torch(bucket: torch.Tensor) -> ExchangeCost:
        ranks.all_reduce(bucket)
        return ExchangeCost()

    if configuration.algorithm == TORCH:
        return by_torch
    exchange = Exchange(link, configuration.plan)
    return lambda bucket: exchange.all_reduce(bucket, average=False)


def _measure_line(ranks: Ranks, link: Link) -> Line | None:
    """Return the link between ranks 0 and 1 as measured, on rank 0; the other ranks return None."""
    points = measure(link, 1 - ranks.rank, QUICK) if ranks.rank < 2 else ()
    if ranks.rank == 0:
        ranks.say("line", "measured")
        return fit(points)
    ranks.hear("line")
    return None


def _task(options: AllReduceOptions, world: int) -> Task[AllReduceOptions, Event]:
    return Task(
        work=work,
        options=options,
        world=world,
        timeout_s=options.timeout_s,
        shared={**_shared(options), "measured": options.line is not None},
        preload=(__name__,),
        when=_when,
    )


def _measure(options: AllReduceOptions) -> tuple[AllReduceOptions, list[Result]]:
    """Benchmark each number of ranks; only the first benchmark measures the link."""
    results: list[Result] = []
    with progress(len(options.worlds) * len(options.configurations), options.quiet) as advance:

        def show(event: Event) -> None:
            nonlocal options
            if isinstance(event, LineMeasured):
                options = replace(options, line=event.line)
                return
            results.append(event)
            p50 = format_duration(event.timing.p50_s)
            advance(len(results), f"{event.world} ranks, {event.configuration}: {p50}")

        for world in options.worlds:
            perform(_task(options, world), show)
    return options, results


def _when(event: Event | None) -> str:
    return f"after {event.configuration}" if isinstance(event, Result) else "before the first all-reduce"


def _shared(options: AllReduceOptions) -> dict[str, object]:
    values = options.shared() | {"data": str(options.data)}
    return {key: value for key, value in values.items() if key not in ("measured_file", "line")}


def _describe(options: AllReduceOptions, results: list[Result]) -> dict[str, object]:
    torchs = torch_times(results)
    rows = [result.describe(torchs.get((result.world, result.configuration.nbytes))) for result in results]
    line = None if options.line is None else asdict(options.line)
    fields = {"options": _shared(options), "topology": described(), "line": line, "results": rows}
    return make_record(SCHEMA, fields, target=_native.target())
