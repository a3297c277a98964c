"""The command ``gradwire line-rate``: its options, ranks, and record."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from gradwire.errors import JobError
from gradwire.fields import to_values
from gradwire.files import write_files
from gradwire.launch.local import RankContext, Task
from gradwire.line_rate.display import progress
from gradwire.line_rate.page import draw_line_rate, line_rate_page, show_line_rate
from gradwire.line_rate.ranks import Ranks, check_network, is_speaker, met_ranks, perform
from gradwire.links import Link
from gradwire.machine import cores, described, rates_in_words
from gradwire.page import check_results, keep
from gradwire.records import make_record
from gradwire.timing.calibrate import REPEATS, end_cost
from gradwire.timing.line import (
    FRAMES,
    LARGE_NBYTES,
    SCHEMA,
    EndCost,
    HostCost,
    LineRate,
    Point,
    both_ends,
    fit,
)
from gradwire.timing.line_rate import Effort, measure
from gradwire.units import exact_size, format_duration, format_rate
from gradwire.version import how_to_install

# The files of a benchmark: its record, and a picture.


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The options of a benchmark that may differ between ranks: its result files and its display."""

    json_file: Path | None = None
    plot_file: Path | None = None
    overwrite: bool = False
    quiet: bool = False

    def check_outputs(self) -> None:
        """Raise ``GradwireError`` on the rank that writes the result files if it couldn't write them."""
        rates_in_words()
        if not is_speaker():
            return
        check_results(self.json_file, "--plot", self.plot_file, self.overwrite)
        if self.plot_file is not None and importlib.util.find_spec("matplotlib") is None:
            raise JobError(f"--plot needs matplotlib, which isn't installed; {how_to_install('plots')}")

    def write_outputs(
        self,
        describe: Callable[[], dict[str, object]],
        page_of: Callable[[Mapping[str, Any]], str],
        draw: Callable[[], bytes],
    ) -> None:
        """Write the requested files, all or none, and the record's page. Raises ``JobError``."""
        plot = {} if self.plot_file is None else {self.plot_file: draw()}
        if self.json_file is None:
            write_files(plot)
        else:
            keep(self.json_file, describe(), page_of, plot)

    def shared(self) -> dict[str, object]:
        """Return the options that must be equal on all ranks: all but those of ``Outputs``."""
        return {key: value for key, value in asdict(self).items() if key not in Outputs.__dataclass_fields__}


Pair = tuple[int, int]
MOST_REPEATS = 1000
MOST_S = 3600.0
MOST_WINDOW = 10_000
_SENDER, _REPEATS = "line-rate/sender", "line-rate/repeats"
_HOST_S = 2.0
"""The time limit for measuring per-frame costs, which do not matter on a slow link."""


@dataclass(frozen=True)
class LineRateOptions(Outputs):
    """The options of ``gradwire line-rate``. All but those of ``Outputs`` are equal on all ranks."""

    effort: Effort
    workers: int = 2
    all_pairs: bool = False
    link: str | None = None  # the rate to which every rank is throttled, such as "100mbit"
    timeout_s: float = 60.0

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of ranks to measure, in order."""
        return tuple(combinations(range(self.workers), 2)) if self.all_pairs else ((0, 1),)


@dataclass(frozen=True)
class PointDone:
    """An event: the link of a pair of ranks has been measured with one message size."""

    pair: Pair
    point: Point


@dataclass(frozen=True)
class PairDone:
    """An event: the link of a pair of ranks has been measured with all message sizes."""

    pair: Pair
    points: tuple[Point, ...]


@dataclass(frozen=True)
class HostDone:
    """An event: the per-frame costs at ranks 0 and 1 have been measured."""

    host: HostCost


Event = PointDone | PairDone | HostDone


def run_line_rate(options: LineRateOptions) -> dict[Pair, LineRate]:
    """Measure all pairs, report, and return the results ({} except on rank 0). Raises ``GradwireError``."""
    check_network(options.workers, options.link, options.timeout_s)
    effort = options.effort
    if effort.repeats > MOST_REPEATS or effort.time_s > MOST_S or effort.window > MOST_WINDOW:
        raise JobError(
            f"expected at most {MOST_REPEATS} for --repeats, {MOST_S:g} seconds for --time and "
            f"{MOST_WINDOW} for --window, got {effort.repeats}, {effort.time_s:g} and {effort.window}; "
            "pass smaller values"
        )
    options.check_outputs()
    world, timeout_s, shared = options.workers, options.timeout_s, options.shared()
    task = Task(work, options, world, timeout_s, shared, preload=(__name__,), when=_when)
    if not is_speaker():
        perform(task, lambda _: None)
        return {}
    rates = _measure(task)
    first = rates[0, 1]
    show_line_rate(rates, options.link)
    options.write_outputs(lambda: _describe(options, rates), line_rate_page, lambda: draw_line_rate(first))
    return rates


def work(context: RankContext[Event], options: LineRateOptions) -> None:
    """Measure the links of this rank's pairs, one pair at a time. Rank 0 reports all ranks' results."""
    with met_ranks(context, options.timeout_s) as ranks, closing(ranks.connect(options.link)) as link:
        first: tuple[Point, ...] = ()
        for number, pair in enumerate(options.pairs):
            context.doing = f"link between ranks {pair[0]} and {pair[1]}"
            if number and ranks.rank in pair:
                ranks.hear(_word(options.pairs[number - 1]))
            points: tuple[Point, ...] = ()
            if ranks.rank in pair:
                report = partial(_report_point, context, pair)
                points = measure(link, sum(pair) - ranks.rank, options.effort, report)
            first = first or points
            if ranks.rank == pair[0]:  # this also lets the next pair start
                ranks.say(_word(pair), json.dumps([asdict(point) for point in points]))
            if ranks.rank == 0:
                heard = json.loads(ranks.hear(_word(pair)))
                context.report(PairDone(pair, tuple(Point(**values) for values in heard)))
        ranks.hear(_word(options.pairs[-1]))
        context.doing = "per-frame costs"
        if ranks.rank == 0:
            ranks.say(_REPEATS, str(_repeats(fit(first).nbytes_per_s)))
        repeats = int(ranks.hear(_REPEATS))
        if repeats:
            _measure_host(ranks, context, link, repeats)


def _repeats(nbytes_per_s: float) -> int:
    """Return how often to repeat the timing of frames on a link of this rate; 0 if the link is too slow."""
    return min(REPEATS, int(_HOST_S * nbytes_per_s / (FRAMES * LARGE_NBYTES)))


def _measure_host(ranks: Ranks, context: RankContext[Event], link: Link, repeats: int) -> None:
    """Measure the costs of a frame, with rank 1 as sender and rank 0 as receiver; rank 0 reports them."""
    own = end_cost(link, ranks.barrier, repeats)
    if ranks.rank == 1:
        ranks.say(_SENDER, json.dumps(asdict(own)))
    if ranks.rank == 0:
        sender = EndCost(**json.loads(ranks.hear(_SENDER)))
        context.report(HostDone(both_ends(sender, own, cores(), context.ranks_here)))


def _report_point(context: RankContext[Event], pair: Pair, point: Point) -> None:
    if context.rank == 0:
        context.report(PointDone(pair, point))


def _word(pair: Pair) -> str:
    return f"line-rate/{pair[0]}-{pair[1]}"


def _measure(task: Task[LineRateOptions, Event]) -> dict[Pair, LineRate]:
    options, sizes = task.options, len(task.options.effort.sizes)
    points: dict[Pair, tuple[Point, ...]] = {}
    host: HostCost | None = None
    with progress(len(options.pairs) * sizes, options.quiet) as advance:
        done = 0

        def show(event: Event) -> None:
            nonlocal done, host
            if isinstance(event, PointDone):
                done += 1
                point, (low, high) = event.point, event.pair
                figures = f"{format_duration(point.time_s)}, {format_rate(point.nbytes_per_s)}"
                advance(done, f"ranks {low} and {high}, {exact_size(point.nbytes)}: {figures}")
            elif isinstance(event, PairDone):
                points[event.pair] = event.points
                done = len(points) * sizes
            else:
                host = event.host

        perform(task, show)
    return {pair: LineRate.of(of_pair, host) for pair, of_pair in points.items()}


def _when(event: Event | None) -> str:
    if event is None:
        return "before the first message size"
    if isinstance(event, HostDone):
        return "after everything was measured"
    return f"while the link between ranks {event.pair[0]} and {event.pair[1]} was measured"


def _describe(options: LineRateOptions, rates: dict[Pair, LineRate]) -> dict[str, object]:
    """Return the record of all pairs, with the first pair's link in the format of ``LineRate.load``."""
    pairs = [
        {"ranks": pair, "line": asdict(rate.line), "points": [asdict(point) for point in rate.points]}
        for pair, rate in rates.items()
    ]
    fields = {"options": options.shared(), "topology": described(), **to_values(rates[0, 1]), "pairs": pairs}
    return make_record(SCHEMA, fields)
