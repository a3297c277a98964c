"""The tables that benchmarks end with."""

from __future__ import annotations

from collections.abc import Mapping

from gradwire.benchmark.result import Result, torch_times
from gradwire.plan import Plan
from gradwire.tables import Column, Table, figure, show
from gradwire.testbed.current import rates_in_words
from gradwire.timing.replay.line import Line, LineRate
from gradwire.units import exact_size, format_duration, format_rate, format_size

LINE_COLUMNS = tuple(map(Column, ("size", "time", "one way", "both ways, each")))
LINE_NOTE = (
    "Time: half of the median round trip of one message. One way: the median rate of a stream of messages. "
    "Both ways: of each of two streams at once."
)
PAIR_COLUMNS = (Column.of_text("ranks of a pair"), *map(Column, ("latency", "one way", "burst")))
PAIR_NOTE = "Every pair's line while the other ranks rest."

REDUCE_COLUMNS = (
    Column.of_text("algorithm"),
    Column.of_text("codec"),
    Column("ranks"),
    Column("size"),
    Column("p50", "ms"),
    Column("p99", "ms"),
    Column("algbw", "GB/s"),
    Column("busbw", "GB/s"),
    Column("best", "%"),
    Column("wire", "MB"),
    Column("ratio"),
    Column("speed", "/torch"),
)
REDUCE_NOTE = (
    "Times are the slowest rank's. Bandwidths are of floats: algbw = size / p50, busbw = algbw "
    "2 (p - 1) / p. Best: the least time by theory as a share of p50. Wire: sent by the busiest rank, "
    "headers included. Ratio: bytes of floats per byte on the wire. Every sum was checked against the exact "
    "one, and every rank's bits against the others'."
)


def show_line_rate(rates: dict[tuple[int, int], LineRate], link: str | None) -> None:
    """Show the first pair's points and line, and every pair's line where there are several."""
    first, *others = line_rate_tables(rates)
    pair = next(iter(rates))
    show(f"line between the ranks {pair[0]} and {pair[1]}, {place(link)}", "", *with_note(*first))
    for each in others:
        show("", "lines of all pairs", "", *with_note(*each))


def with_note(table: Table, note: str) -> tuple[Table, str, str]:
    """Return a table, an empty line, and what its columns mean."""
    return table, "", note


def line_rate_tables(rates: Mapping[tuple[int, int], LineRate]) -> list[tuple[Table, str]]:
    """Return a table of the first pair's points, and one of all pairs where there are several."""
    first, *others = rates.values()
    rows = [
        (
            exact_size(point.nbytes),
            format_duration(point.time_s),
            format_rate(point.nbytes_per_s),
            format_rate(point.duplex_nbytes_per_s),
        )
        for point in first.points
    ]
    tables = [(Table(LINE_COLUMNS, rows), f"{LINE_NOTE} {describe_line(first.line)}")]
    if others:
        tables.append((Table(PAIR_COLUMNS, [_pair_row(*item) for item in rates.items()]), PAIR_NOTE))
    return tables


def place(link: str | None) -> str:
    """Return what limits the line here, in words."""
    return limits(link, rates_in_words())


def limits(link: str | None, rates: str | None) -> str:
    """Return in words what limits a line: a throttle, and the rates of a testbed."""
    testbed = "" if rates is None else f"in a testbed of {rates}"
    throttled = f"throttled to {link}" if link else ""
    return ", ".join(filter(None, (throttled, testbed))) or "not throttled"


def describe_line(line: Line) -> str:
    """Return a line in words."""
    burst = f", after a burst of {format_size(line.burst_nbytes)}" if line.burst_nbytes else ""
    rate, latency = format_rate(line.nbytes_per_s), format_duration(line.latency_s)
    return f"The line: latency {latency}, {rate}{burst}."


def _pair_row(pair: tuple[int, int], rate: LineRate) -> tuple[str, ...]:
    line = rate.line
    return (
        f"{pair[0]} and {pair[1]}",
        format_duration(line.latency_s),
        format_rate(line.nbytes_per_s),
        format_size(line.burst_nbytes),
    )


def show_allreduce(results: list[Result], line: Line | None, data: str, link: str | None) -> None:
    """Show a row for every configuration."""
    show(f"all-reduce of {data}, {place(link)}", "", *with_note(*allreduce_table(results, line)))


def allreduce_table(results: list[Result], line: Line | None) -> tuple[Table, str]:
    """Return a table with a row for every configuration, and what its columns mean."""
    torchs = torch_times(results)
    rows = [
        _result_row(result, torchs.get((result.world, result.configuration.nbytes))) for result in results
    ]
    note = REDUCE_NOTE if line is None else f"{REDUCE_NOTE} {describe_line(line)}"
    return Table(REDUCE_COLUMNS, rows), note


def _result_row(result: Result, torch_s: float | None) -> tuple[str, ...]:
    configuration, p50_s = result.configuration, result.timing.p50_s
    ours = any(result.checked.wire_nbytes)
    segment = configuration.segment_nbytes
    name = configuration.algorithm
    share = result.share_of_best
    return (
        name if segment == Plan.segment_nbytes else f"{name} /{exact_size(segment)}",
        configuration.codec,
        str(result.world),
        exact_size(configuration.nbytes),
        figure(1e3 * p50_s),
        figure(1e3 * result.timing.p99_s),
        figure(result.algbw_nbytes_per_s / 1e9),
        figure(result.busbw_nbytes_per_s / 1e9),
        "-" if share is None else f"{100 * share:.0f}",
        figure(max(result.checked.wire_nbytes) / 1e6) if ours else "-",
        f"{result.checked.ratio:.2f}" if ours else "-",
        "-" if torch_s is None else f"{torch_s / p50_s:.2f}x",
    )
