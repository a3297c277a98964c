"""The README's make targets and codecs exist, and its links lead somewhere; test_pages tries its code."""

from __future__ import annotations

import re
from pathlib import Path

from gradwire.codecs import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^ +|`)make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_codecs_of_its_table_exist() -> None:
    specs = re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE)
    assert len(specs) >= 12
    for spec in specs:
        assert str(parse(spec)) == spec


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
