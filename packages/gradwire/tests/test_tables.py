from __future__ import annotations

import re
from collections import Counter
from importlib.machinery import ModuleSpec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.tables import WIDTH, Column, Table, figure, lines, show

COLUMNS = (Column.of_text("codec"), Column("size"), Column("p50", "ms"))
ROWS = [("identity", "64KiB", "1.5"), ("errbound:2^-10", "1MiB", "12.25")]


def test_text_stands_at_the_left_figures_at_the_right_and_units_below_names() -> None:
    assert lines(Table(COLUMNS, ROWS)) == [
        "codec            size    p50",
        "                          ms",
        "----------------------------",
        "identity        64KiB    1.5",
        "errbound:2^-10   1MiB  12.25",
    ]


def test_a_total_stands_below_a_rule() -> None:
    table = Table(COLUMNS[:2], [("a", "1"), ("b", "2"), ("total", "3")], has_total=True)
    assert lines(table) == [
        "codec  size",
        "-----------",
        "a         1",
        "b         2",
        "-----------",
        "total     3",
    ]


def test_a_column_without_entries_is_left_out_and_a_head_without_names_is_not_drawn() -> None:
    assert lines(Table(COLUMNS[:2], [("a", ""), ("b", "")])) == ["codec", "-----", "a", "b"]
    nameless = (Column.of_text(""), Column.of_text(""))
    assert lines(Table(nameless, [("line", "1gbit"), ("compute", "2ms")])) == [
        "line     1gbit",
        "compute  2ms",
    ]
    for rows in ([], [("", "", "")]):
        assert lines(Table(COLUMNS, rows), "end") == ["end"]


def test_what_is_too_wide_is_folded_where_a_spec_has_joints_and_a_sentence_spaces() -> None:
    columns = (Column.of_text("plan"), Column("step"), Column.of_text("detail"))
    row = ("hierarchical:4,ring+star", "12", "one two three /a/path-that-nobody-folds")
    assert lines(Table(columns, [row]), width=42) == [
        "plan               step  detail",
        "------------------------------------------",
        "hierarchical:4,      12  one two three",
        "ring+star                /a/path-that-nobody-folds",
    ]


cells = st.text(st.sampled_from("abc:,+"), min_size=1, max_size=40)
figures = st.from_regex(r"[0-9]{1,5}", fullmatch=True)


@given(st.lists(st.tuples(cells, cells, figures, figures), min_size=1, max_size=5))
def test_a_table_fits_and_loses_nothing(rows: list[tuple[str, ...]]) -> None:
    columns = (Column.of_text("one"), Column.of_text("two"), Column("three"), Column("four", "ms"))
    printed = lines(Table(columns, rows), width=50)
    assert max(map(len, printed)) <= 50
    told = Counter("".join(row[0] + row[1] for row in rows))
    assert told <= Counter("".join(printed))
    assert re.findall(r"\d+", " ".join(printed)) == [figure for row in rows for figure in row[2:]]


def test_a_figure_has_five_characters_at_most() -> None:
    told = [figure(value) for value in (0.0, 0.00149, 0.0996, 9.876, 99.96, 99_999.0)]
    assert told == ["0.000", "0.001", "0.100", "9.88", "100", "99999"]


def test_paragraphs_are_wrapped_and_an_empty_one_is_an_empty_line() -> None:
    printed = lines("a note of many words " * 20, "", "end")
    assert printed[-2:] == ["", "end"]
    assert max(map(len, printed)) <= WIDTH


@pytest.mark.parametrize("has_rich", [True, False])
def test_without_a_terminal_the_text_is_plain(
    has_rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if not has_rich:
        hide_rich(monkeypatch)
    show("a title", "", Table(COLUMNS, ROWS))
    assert capsys.readouterr().out.splitlines() == ["a title", "", *lines(Table(COLUMNS, ROWS))]


@pytest.mark.parametrize("width", [40, 100])
def test_on_a_terminal_rich_draws_the_same_cells(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    total = ("[red]total[/red]", "2MiB", "13.75")
    show("a note of many words " * 4, Table(COLUMNS, [*ROWS, total], has_total=True))
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, printed)) <= width
    assert [line.split() for line in printed if line[:1] in "ie["] == [*map(list, ROWS), list(total)]


def hide_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        assert (name, package) == ("rich", None)
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
