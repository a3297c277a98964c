"""Clicking through reports: a sound one passes, and one whose tables or themes are broken is told."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gradwire.page import PageLink, Report, Section, render
from gradwire.tables import Column, Table
from support.project import ROOT

ROWS = [("b", "9ms"), ("a", "10us"), ("c", "-"), ("d", "1s"), ("all", "2s")]
TABLE = Table((Column.of_text("run"), Column("time")), ROWS, has_total=True)
RECORD = {"schema": "gradwire.test/1", "machine": {"cores": 2}, "versions": {"python": "3"}}


@pytest.fixture
def clicks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("click_reports")


def test_figures_are_in_order_with_those_unknown_behind_them(clicks: ModuleType) -> None:
    def keys(*figures: str) -> list[tuple[str, str]]:
        return [(figure, "text") for figure in figures]

    assert clicks.in_order(keys("1.0", "9.5", "10.0", ""), False)
    assert clicks.in_order(keys("10.0", "9.5", ""), True)
    assert not clicks.in_order(keys("10.0", "9.5"), False)
    assert not clicks.in_order(keys("", "1.0"), False)
    assert not clicks.in_order([(None, "b"), (None, "a")], False)
    assert clicks.in_order([(None, "b"), (None, "a")], True)


def test_it_says_what_to_install(
    clicks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    assert clicks.main([str(tmp_path)]) == 2
    assert "the Python package playwright is missing; install" in capsys.readouterr().err


def test_a_page_that_does_not_exist_is_a_mistake(
    clicks: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        clicks.main(["no-such-page.html"])
    assert "no-such-page.html doesn't exist; create one first" in capsys.readouterr().err


@pytest.mark.processes
def test_it_finds_what_is_broken(
    clicks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("playwright", reason="the extra 'browser' isn't installed")
    if clicks.browser_path() is None:
        pytest.skip("this machine has no Chromium")
    sections = [Section("Summary", [PageLink("the times", "times")]), Section("Times", [("times", TABLE)])]
    good = render(Report("A run", "It was fast.", sections), RECORD)
    (tmp_path / "good.html").write_text(good)
    assert clicks.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 reports, clicked through: 0 complaints\n"
    for old, new, complaint in (
        ("sign * before(a, b)", "before(a, b)", "column 1, descending: the order is"),
        ("body.append(", "body.rows[0].remove(); body.append(", "rows are lost"),
        ('isDark() ? "light"', 'isDark() ? "dark"', "expected two alternating themes"),
        ('href="#times"', 'href="#nowhere"', "its link #nowhere has no target"),
        ('document.querySelector(".controls").hidden = false', "", "the theme switch is not visible"),
        ("each.open = open", "each.open = true", "expected 3 folded sections after all were closed, got 0"),
        ('each.tagName === "DETAILS"', "false", "its link #times doesn't open its target"),
        ('tabindex="0"', 'tabindex="-1"', "the keyboard reaches"),
    ):
        assert old in good
        (tmp_path / "good.html").write_text(good.replace(old, new))
        assert clicks.main([str(tmp_path)]) == 1
        assert complaint in capsys.readouterr().out
