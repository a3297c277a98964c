"""The check of pages in a browser: it finds what is wrong, and says what to install where it can't run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.project import ROOT

GOOD = "<!doctype html><html lang=en><title>A page</title><main><h1>A page</h1><p>Its text.</main></html>"
WIDE = GOOD.replace("<p>", "<p style='width: 2000px; color: #ddd; background: #fff'>")
FAINT = "<details><summary>More</summary><p style='color: #ddd; background: #fff'>Faint.</p></details><p>"
FOLDED = GOOD.replace("<p>", FAINT)
STRANGE = GOOD.replace("<p>", "<script src='http://127.0.0.2:9/far.js'></script><p>")


def browse() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browse", ROOT / "scripts" / "browse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_folder_stands_for_its_pages(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.html", "b/c.html", "style.css"):
        (tmp_path / name).write_text("")
    assert browse().pages_of([tmp_path]) == [tmp_path / "a.html", tmp_path / "b" / "c.html"]


def test_only_pages_of_other_hosts_are_outside() -> None:
    outside = browse().outside
    assert not outside("http://127.0.0.1:80/a.html", "http://127.0.0.1:80/")
    assert not outside("data:image/png;base64,AA", "http://127.0.0.1:80/")
    assert outside("https://example.org/a.js", "http://127.0.0.1:80/")


def test_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    monkeypatch.setitem(sys.modules, "axe_playwright_python", None)
    assert browse().main([str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("browse: the Python package axe_playwright_python is missing; install ")
    assert "apt-get install chromium" in told


def test_a_page_that_does_not_exist_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        browse().main(["no-such-page.html"])
    assert "no-such-page.html doesn't exist; build it first" in capsys.readouterr().err


@pytest.mark.processes
def test_it_finds_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("playwright", reason="the extra 'browser' isn't installed")
    pytest.importorskip("axe_playwright_python", reason="the extra 'browser' isn't installed")
    module = browse()
    if module.browser_path() is None:
        pytest.skip("this machine has no Chromium")
    for name, text in (("good", GOOD), ("wide", WIDE), ("strange", STRANGE)):
        (tmp_path / f"{name}.html").write_text(text)
    good, pictures = [str(tmp_path / "good.html")], tmp_path / "pictures"
    assert module.main([*good, "--widths", "390", "--out", str(pictures)]) == 0
    assert sorted(each.name for each in pictures.iterdir()) == ["good-390-dark.png", "good-390-light.png"]
    assert "1 pages, each in 2 ways: 0 complaints" in capsys.readouterr().out
    (tmp_path / "folded.html").write_text(FOLDED)
    assert module.main([str(tmp_path), "--widths", "390", "--schemes", "light"]) == 1
    told = capsys.readouterr().out
    assert "wide.html at 390, light: is 20" in told
    assert "pixels wide in a window of 390" in told
    assert "wide.html at 390, light: color-contrast (serious)" in told
    assert "strange.html at 390, light: asks for http://127.0.0.2:9/far.js" in told
    assert "good.html at" not in told
    assert "folded.html at 390, light: color-contrast (serious)" in told, "folded parts are opened"
    folded = [str(tmp_path / "folded.html"), "--widths", "390", "--schemes", "light"]
    module.main([*folded, "--out", str(tmp_path / "opened")])
    opened = sorted(each.name for each in (tmp_path / "opened").iterdir())
    assert opened == ["folded-390-light-open.png", "folded-390-light.png"]
