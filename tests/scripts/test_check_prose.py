"""The prose linter finds what it is made for; names and anchors on the pages exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from gradwire import plugins
from support.project import ROOT

PAGES = [*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAME = re.compile(r"(?<![\w/.-])gradwire(?:\.[A-Za-z_]\w*)+(?![\w/-])")
EXPLAINED = "one two three four five six seven eight nine ten"


def linter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_prose", ROOT / "scripts" / "check_prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("A rank that is late waits.", 0),
        ("A peer that sends what cannot be is an error.", 1),
        ("`Tell whether` in code is fine.", 0),
        ("```\nTell whether\n```\nFine.", 0),
        (f"# Title\n\n{' '.join([EXPLAINED] * 5)}.", 1),
        (f"{EXPLAINED}: {EXPLAINED}. {EXPLAINED}; {EXPLAINED} {EXPLAINED}.", 0),
        (f"| {' '.join([EXPLAINED] * 6)} |", 0),
        (f"- {EXPLAINED} {EXPLAINED}\n- {EXPLAINED} {EXPLAINED}\n- {EXPLAINED} {EXPLAINED}", 0),
    ],
)
def test_it_finds_phrases_and_long_sentences_of_pages(page: str, found: int) -> None:
    assert len(list(linter().check_page(page))) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Tell the peers that nothing more comes."""\n', 0),
        ('def f():\n    """Tell the peers that nothing more comes."""\n', 0),
        ('def f():\n    """Return whether it is so."""\n', 0),
        ('def f():\n    """Tell whether it is so."""\n', 2),  # the phrase, and the opening
        ('class A:\n    def f(self):\n        """Returns 1."""\n', 1),
        ("x = 1  # a peer: who reads this stumbles\n", 1),
        ('x = "tell whether"\n', 0),
    ],
)
def test_it_finds_phrases_of_docstrings_and_comments(source: str, found: int) -> None:
    assert len(list(linter().check_module(source))) == found


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ('def f():\n    """Which rank is first."""\n', ["headless"]),
        ('X = 1\n"""So many bytes are read at once."""\n', ["headless", "word"]),
        ('def f():\n    """Return what is left."""\n', ["headless"]),
        ('def f() -> bool:\n    """Whether it is open."""\n', ["headless"]),
        ('class A:\n    @property\n    def f(self) -> bool:\n        """Whether this link is open."""\n', []),
        ('class A:\n    is_open: bool\n    """Whether this link is open."""\n', []),
        ('class A:\n    is_open: bool\n    """Whether no link is open."""\n', ["headless"]),
        (f'"""{"a " * 26}."""\n', ["first"]),
        ('"""One sentence. Another one that ends."""\n', []),
        ('x = "rank 1 is told nothing"\n', ["word"]),
        ("x = told\n", []),
        ('raise SpecError("3 norms are wanted, but 2 came")\n', ["error"]),
        ('raise SpecError("expected 3 norms, got 2")\n', []),
        ('x = "3 norms are wanted"\n', []),
        ("def f(told): ...\n", ["parameter"]),
    ],
)
def test_it_finds_sentences_without_a_head_and_words_of_our_own(source: str, rules: list[str]) -> None:
    assert sorted({found.rule for found in linter().check_module(source)}) == rules


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ("x = 1  # which needs no lock\n", ["fragment"]),
        ("x = 1  # needs no lock\n", []),
        ("# A rank waits for the peer,\n# which sends a frame.\n", []),
        ("x = 1  # the size, or 0 where it is unknown\n", ["phrase"]),
        ("x = 1  # expected one algorithm more than sizes\n", ["phrase"]),
    ],
)
def test_it_finds_comments_that_are_fragments_or_in_foreign_word_order(source: str, rules: list[str]) -> None:
    assert [found.rule for found in linter().check_module(source)] == rules


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("// Returns the size.\nint f();\n", []),
        ("// Returns null, or says what is\n// wrong.\nint f();\n", [(1, "phrase")]),
        ("int f();\n\n  // What is left of a round.\n  int g();\n", [(3, "headless")]),
        ("// The next round of symbols.\nint f();\n", []),
        ("// A rank is told nothing.\nint f();\n", [(1, "word")]),
        ('const char* url = "http://which.of";  // of a page\n', []),
    ],
)
def test_it_finds_phrases_of_native_comments(source: str, found: list[tuple[int, str]]) -> None:
    assert [(each.line, each.rule) for each in linter().check_native(source)] == found


def test_a_finding_has_its_line() -> None:
    page = "# Title\n\n```\ncode\n```\n\n- fine\n- no rank is told\n"
    assert [(found.line, found.rule) for found in linter().check_page(page)] == [(8, "word")]


def test_class_names_are_unique_in_a_package() -> None:
    one, other = ROOT / "packages/a/src/a/x.py", ROOT / "packages/a/src/a/y.py"
    found = list(linter().check_class_names({one: "class A: ...\n", other: "class B: ...\n\nclass A: ...\n"}))
    assert [(path, finding.line) for path, finding in found] == [(one, 1), (other, 3)]


def test_each_framework_has_an_integration_of_the_same_name() -> None:
    one, other = (ROOT / f"packages/a/src/a/integrations/{name}.py" for name in "xy")
    assert not list(linter().check_class_names({one: "class A: ...\n", other: "class A: ...\n"}))


def test_every_dotted_name_on_the_pages_exists() -> None:
    found = {name for page in PAGES for name in NAME.findall(page.read_text(encoding="utf-8"))}
    assert len(found) > 25
    assert sorted(name for name in found - loggers() - groups() - FILES if not resolves(name)) == []


FILES = {"gradwire.toml"}
"""Files that are named as modules are."""


def groups() -> set[str]:
    """Return the groups of entry points, which are named as modules are."""
    return {each for each in vars(plugins).values() if isinstance(each, str)}


def loggers() -> set[str]:
    """Return the names of gradwire's loggers, which need be no modules."""
    sources = (ROOT / "packages").glob("*/src/**/*.py")
    named = re.compile(r'(?:getLogger\(|_LOGGER = )"([\w.]+)"')
    return {name for path in sources for name in named.findall(path.read_text())}


def resolves(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        if not is_module(".".join(parts[:cut])):
            continue
        value: object = importlib.import_module(".".join(parts[:cut])) if cut < len(parts) else True
        for part in parts[cut:]:
            value = getattr(value, part, None)
        return value is not None
    return False


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what stands before the last dot is no package
        return False


def test_links_to_headings_lead_to_headings() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            other = (page.parent / target).resolve() if target else page
            assert anchor in anchors(other), f"{page.relative_to(ROOT)} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
