import struct
from dataclasses import replace

import pytest

from gradwire.line_rate.page import draw_line_rate
from gradwire.timing.line import Line, LineRate, Point
from gradwire_lab.benchmark.allreduce import TORCH, Checked, Configuration, Result, Timing
from gradwire_lab.benchmark.page import draw_allreduce


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def make_results(sizes: tuple[int, ...], worlds: tuple[int, ...], line: Line | None) -> list[Result]:
    checked = Checked((1, 1), 1.0, 0.0, 1.0, 0.1)
    return [
        Result(Configuration(name, "identity", nbytes), world, Timing((nbytes / 1e9,)), checked, line)
        for name in (TORCH, "ring", "tree")
        for nbytes in sizes
        for world in worlds
    ]


def test_a_line_is_drawn() -> None:
    points = [Point(1 << power, 1e-4 + 2.0**power / 1e9, 1e3 * 2.0**power, 1e9) for power in range(0, 24, 4)]
    assert size_of(draw_line_rate(LineRate.of(points)))[0] > 1000


@pytest.mark.parametrize("line", [None, Line(1e-4, 1e9)])
@pytest.mark.parametrize("sizes", [(1 << 20,), (1 << 16, 1 << 20)])
def test_all_reduces_are_drawn_as_bars_or_curves(line: Line | None, sizes: tuple[int, ...]) -> None:
    one, two = (size_of(draw_allreduce(make_results(sizes, worlds, line))) for worlds in ((2,), (2, 4)))
    assert two[0] > one[0], "a panel for every number of ranks"


def test_more_bars_take_more_room() -> None:
    results = make_results((1 << 20,), (2,), None)
    more = results + [
        replace(result, configuration=replace(result.configuration, segment_nbytes=1 << 20))
        for result in results[1:]
    ]
    assert size_of(draw_allreduce(more))[1] > size_of(draw_allreduce(results))[1]
