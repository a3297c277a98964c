"""Gains by number of hosts: the table, the sentence, and the picture, from the rows of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.figure
import pytest

from gradwire.page.picture import WIDTH_IN
from gradwire.planner.by_hosts import by_hosts, gains_by_hosts, pays, read_points
from gradwire.planner.choice import ScalePoint, hosts_that_pay
from gradwire.tables import Table

STEPS_S = {1: (0.1, 0.1, 0.1), 2: (0.2, 0.16, 0.11), 4: (0.4, 0.25, 0.125), 8: (0.9, 0.5, 0.24)}
"""Hosts -> seconds of a step: DDP, its bf16 hook, and gradwire."""


def points_of(steps_s: dict[int, tuple[float, float, float]]) -> list[ScalePoint]:
    return [ScalePoint(hosts, own, 0.1, None, ddp, hook) for hosts, (ddp, hook, own) in steps_s.items()]


ROWS = [each.values() for each in points_of(STEPS_S)]


def plotted(rows: list[dict[str, Any]], here: int = 4) -> Any:
    figure = matplotlib.figure.Figure(figsize=(WIDTH_IN, 3.0))
    gains_by_hosts(rows, here).paint(figure)
    (axes,) = figure.axes
    return axes


def test_the_rows_of_a_record_give_its_points_again() -> None:
    for point, read in zip(points_of(STEPS_S), read_points(ROWS), strict=True):
        assert (read.hosts, read.plain_s, read.hook_s) == (point.hosts, point.plain_s, point.hook_s)
        assert read.speedup == pytest.approx(point.speedup)


def test_where_hosts_stop_to_pay_is_the_planners_own_number() -> None:
    points = points_of(STEPS_S)
    assert hosts_that_pay(points) == 4
    assert pays(points) == "Each additional host pays off up to 4 hosts"
    again = [*points, ScalePoint(16, 0.2, 0.1, None)]
    assert pays(again).endswith("up to 4 hosts and from 8 to 16 hosts, the largest predicted number")
    assert pays(points[:3]).endswith("up to 4 hosts, the largest predicted number")
    assert pays([points[0], points[3]]).startswith("Each additional host adds less than half")
    assert "pays off up to 4 hosts." in gains_by_hosts(ROWS, 2).caption


def _table_in(parts: Sequence[Any]) -> tuple[Table, Any]:
    """Return the table of a page's first section, and the sentence after it."""
    (_, table), said = parts
    assert isinstance(table, Table)
    return table, said


def test_the_table_has_both_baselines_and_the_gains_over_them() -> None:
    table, said = _table_in(by_hosts(ROWS))
    assert table.rows[2][:8] == ("4", "400ms", "250ms", "125ms", "3.20x", "2.00x", "3.20x", "80 %")
    assert said == "Each additional host pays off up to 4 hosts."
    assert by_hosts([]) == []


def test_a_record_without_baselines_has_neither_their_columns_nor_their_curves() -> None:
    rows = [{name: row[name] for name in ("hosts", "step_s", "efficiency")} for row in ROWS]
    table, _ = _table_in(by_hosts(rows))
    assert [each.name for each in table.without_empty().columns] == [
        "hosts",
        "with gradwire",
        "throughput",
        "efficiency",
    ]
    assert [each.get_label() for each in plotted(rows).lines[:2]] == ["ideal", "with gradwire"]


def test_the_picture_has_a_curve_for_each_way_on_axes_that_say_their_scale() -> None:
    axes = plotted(ROWS)
    curves = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert curves["DDP"] == pytest.approx([1.0, 1.0, 1.0, 8 / 9])
    assert curves["bf16 hook"] == pytest.approx([1.0, 1.25, 1.6, 1.6])
    assert curves["with gradwire"] == pytest.approx([1.0, 2 / 1.1, 3.2, 8 / 2.4])
    assert axes.get_xlabel() == "hosts, log scale"
    assert axes.get_ylabel() == "throughput [hosts], log scale"
    assert [each.get_text() for each in axes.get_xticklabels()] == ["1", "2", "4", "8"]


def test_the_band_reaches_as_far_as_each_host_pays() -> None:
    (band,) = plotted(ROWS).patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (1, 4)
    assert not plotted([ROWS[0], ROWS[3]]).patches
