import importlib.util
from importlib.machinery import ModuleSpec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.benchmark.table import plain_lines, print_table, size_text
from gradwire.units import parse_size

COLUMNS = ("codec", "size", "p50")
ROWS = [("identity", "64KiB", "1.5"), ("errbound:2^-10", "1MiB", "12.25")]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1, "1B"), (4000, "4kB"), (65536, "64KiB"), (16_000_000, "16MB"), (1 << 26, "64MiB"), (1004, "1004B")],
)
def test_a_size_is_written_the_short_way(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


@given(st.integers(1, 1 << 33))
def test_a_size_is_read_back_exactly(nbytes: int) -> None:
    assert parse_size(size_text(nbytes)) == nbytes


def test_a_plain_table_has_words_at_the_left_and_figures_at_the_right() -> None:
    assert plain_lines(COLUMNS, ROWS) == [
        "codec           size   p50",
        "--------------------------",
        "identity       64KiB   1.5",
        "errbound:2^-10  1MiB 12.25",
    ]


@pytest.mark.parametrize("has_rich", [True, False])
def test_a_table_fits_with_and_without_rich(
    has_rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "rich" and not has_rich else find(name, package)

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    print_table("a title", COLUMNS, ROWS, "a note of many words " * 20)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a title"
    assert max(len(line) for line in printed) <= 100
    assert [line.split() for line in printed if line.startswith(("identity", "errbound"))] == [
        list(row) for row in ROWS
    ]
