"""The README's make targets exist, and its links lead somewhere; test_pages tries its code."""

from __future__ import annotations

import re

from gradwire.codecs import parse
from support.project import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^ +|`)make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_codecs_of_the_table_of_speeds_exist() -> None:
    page = (ROOT / "docs" / "codec_speed.md").read_text(encoding="utf-8")
    specs = re.findall(r"^\| `([^`]+)`(?:, the default)? \|", page, re.MULTILINE)
    assert len(specs) >= 12
    for spec in specs:
        assert str(parse(spec)) == spec


def test_it_is_short() -> None:
    assert README.count("\n") <= 130


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
