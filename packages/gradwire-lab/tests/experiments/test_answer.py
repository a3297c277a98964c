"""The answer to an experiment's question: figures of one column, in words and as bars."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.figure
import pytest

from gradwire.page.picture import WIDTH_IN
from gradwire.tables import Column, Table
from gradwire_lab.experiments import EXPERIMENTS
from gradwire_lab.experiments.answer import SHOWN, Answer, Findings

COLUMNS = (Column.of_text("method"), Column("hosts"), Column("time", "s"), Column("gain"))
TABLE = Table(
    COLUMNS, [("DDP", "2", "40 ± 1", "1.00x"), ("fp8", "4", "9.5", "4.20x"), ("none", "2", "-", "-")]
)
ANSWER = Answer("time", ("method", "hosts"))


def found(parts: Sequence[str | Table], answer: Answer = ANSWER) -> Findings:
    findings = Findings.of(parts, answer)
    assert findings is not None
    return findings


def test_the_sentence_has_the_smallest_and_the_largest_figure_and_their_rows() -> None:
    assert found([TABLE]).in_words() == "Time: from 9.5 s (fp8, hosts 4) to 40 ± 1 s (DDP, hosts 2)."
    only = Table(COLUMNS, TABLE.rows[:1])
    assert found([only], Answer("gain", ("method",))).in_words() == "Gain: 1.00x (DDP)."


def test_rows_of_several_tables_are_named_after_their_titles() -> None:
    parts: list[str | Table] = ["mlp at 1gbit, 4 hosts: the loss", "", TABLE, "cnn, 2 hosts", TABLE, "a note"]
    assert [each.name for each in found(parts).rows] == [
        "DDP, hosts 2, mlp at 1gbit",
        "fp8, hosts 4, mlp at 1gbit",
        "DDP, hosts 2, cnn",
        "fp8, hosts 4, cnn",
    ]


def test_tables_without_the_columns_and_rows_without_a_figure_have_no_answer() -> None:
    other = Table((Column("time", "s"),), [("1",)])
    assert len(found([other, TABLE]).rows) == 2
    assert Findings.of([other, "a note"], ANSWER) is None
    assert Findings.of([Table(COLUMNS, TABLE.rows[2:])], ANSWER) is None
    words = Table(COLUMNS, [("hook", "2", "bf16 hook, 1.9", "")])
    assert Findings.of([words], ANSWER) is None, "the number is a part of a name"


@pytest.mark.parametrize(("column", "label"), [("time", "time [s]"), ("gain", "gain [x]")])
def test_bars_have_an_axis_with_the_unit(column: str, label: str) -> None:
    picture = found([TABLE], Answer(column, ("method",))).bars()
    figure = matplotlib.figure.Figure(figsize=(WIDTH_IN, 3))
    picture.paint(figure)
    (axes,) = figure.axes
    assert axes.get_xlabel() == label
    assert [each.get_text() for each in axes.get_yticklabels()] == ["DDP", "fp8"]
    assert len(axes.patches) == 2


def test_more_rows_than_bars_are_said() -> None:
    many = Table(COLUMNS, [(f"{number}", "2", f"{number}", "") for number in range(SHOWN + 3)])
    assert "The tables have 3 more rows." in found([many]).bars().caption


def test_each_experiment_has_an_answer() -> None:
    assert all(each.answer is not None for each in EXPERIMENTS.values())
