"""The site: every page is in its menu, and its references have every command, option and public name."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gradwire
from gradwire.cli import main
from gradwire.cli.main import commands
from support.project import DOCS


@pytest.fixture(autouse=True)
def of_the_site() -> Iterator[None]:
    sys.path.insert(0, str(DOCS / "_site"))
    try:
        yield
    finally:
        sys.path.remove(str(DOCS / "_site"))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_every_page_is_in_the_menu_once() -> None:
    parts = module("menu").parts((DOCS / "README.md").read_text(encoding="utf-8"))
    listed = [page for _, pages in parts for page in pages]
    there = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(there - {"README", "index"})
    assert [name for name, _ in parts][:1] == ["Tutorial"]
    assert module("menu").menu().count("```{toctree}") == len(parts) >= 5


def test_the_reference_has_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    written = module("commands")
    text = written.command_line()
    found = [words for words, _ in written.parsers()]
    assert {words[0] for words in found} == set(commands())
    assert ("bench", "allreduce") in found
    assert ("experiment", "scaling") in found
    assert len(found) > 25
    for words in found:
        _, section = text.split(f"# `gradwire {' '.join(words)}`\n")
        section = section.partition("\n#")[0]
        assert main([*words, "--help"]) == 0
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
        assert options, words
        for option in options:
            assert re.search(rf"`{option}[` ]", section), f"{words}: {option}"


def test_the_page_of_the_command_line_names_every_command() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`gradwire ([a-z-]+)`", page)) == set(commands())


def test_the_reference_has_every_public_name_once() -> None:
    comment, names = module("written").COMMENT, module("names")
    sections: list[str] = []
    for page in sorted((DOCS / "reference").glob("api*.md")):
        (asked,) = comment.findall(page.read_text(encoding="utf-8"))
        assert asked[0] == "python"
        sections += re.findall(r"^\.\. auto\w+:: (\S+)", names.python_names(*asked[1].split()), re.MULTILINE)
    assert len(sections) == len(set(sections))
    assert {f"gradwire.{name}" for name in gradwire.__all__} <= set(sections)
    described = {id(getattr(names.module_of(each), each.rpartition(".")[2])) for each in sections}
    for room in ("codecs", "links", "planner", "exchange", "timing", "collectives", "entropy"):
        public = importlib.import_module(f"gradwire.{room}")
        for name in names.public(public):
            assert id(getattr(public, name)) in described, f"gradwire.{room}.{name}"


def test_the_reference_begins_with_what_a_script_needs() -> None:
    text = module("names").python_names("gradwire")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[:4] == [
        "attach",
        "attach_fsdp",
        "PipeSGD",
        "all_reduce",
    ]


def test_the_page_of_the_papers_records_is_part_of_the_site(tmp_path: Path) -> None:
    reproduced = module("reproduced")
    site = SimpleNamespace(outdir=str(tmp_path), builder=SimpleNamespace(format="html"))
    reproduced.make(site, ValueError("a page failed"))
    assert not list(tmp_path.iterdir())
    reproduced.make(site, None)
    (target,) = re.findall(r'href="([^"]+)"', reproduced.link())
    assert "<h1>" in (tmp_path / target).read_text(encoding="utf-8")
    assert "<!-- site: reproduced -->" in (DOCS / "reproduce.md").read_text(encoding="utf-8")


def test_errors_link_to_what_to_do() -> None:
    text = module("names").python_names("gradwire.errors")
    assert "[What to do](../troubleshooting.md#linkerror)" in text
    rows = module("mistakes").table().splitlines()[2:]
    assert len(rows) >= 17
    assert (
        "| [`AttachError`](#attacherror) | An error for a model that can't use gradwire's hook, or "
        in rows[0]
    )


def test_comments_of_pages_are_replaced_and_links_out_of_the_site_are_files() -> None:
    written = module("written")
    source = ["[a](README.md) [b](../../examples/x.py) [c](../ddp.md)\n\n<!-- site: menu -->\n"]
    written.fill(None, "page", source)
    assert "[a](index.md) [b](path:../../examples/x.py) [c](../ddp.md)" in source[0]
    assert "```{toctree}" in source[0]
    assert "<!--" not in source[0]


def test_what_is_left_out_for_screen_readers_is_put_in_once() -> None:
    mended = module("accessible").mended
    table = '<div class="table-wrapper docutils"><th class="head"><p></p></th></div>'
    once = mended(f'<p class="caption" role="heading">Tutorial</p><pre>x</pre>{table}')
    assert once == mended(once)
    assert 'aria-level="2"' in once
    assert '<pre tabindex="0">' in once
    assert 'role="group" aria-label="Table"' in once
    assert "<th" not in once
    cells = f"<td><p>{30 * '<b>a</b>'}</p></td><td><p><code>{29 * 'a'}</code></p></td>"
    assert mended(cells) == mended(mended(cells)) == cells.replace("<td>", '<td class="prose">', 1)
    assert mended(mended('<div id="search-results"></div>')).count("<h1>Search</h1>") == 1


def test_docstrings_are_taken_as_they_are() -> None:
    names = module("names")
    lines = ["What |x| is: a number, or ``a|b``."]
    names.plain(None, "function", "", None, None, lines)
    assert lines == [r"What \|x\| is: a number, or ``a|b``."]
    lines = ["What |x| is: a number."]
    names.keep(None, "property", "Name.x", None, None, lines)
    lines[:] = ["a number.", ":type: What |x| is"]  # as napoleon leaves it
    names.plain(None, "property", "Name.x", None, None, lines)
    assert lines == [r"What \|x\| is: a number."]
