"""Drawings of docs/images: readable on a phone, in a light and a dark scheme, and shown on a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.project import DOCS

FILES = sorted((DOCS / "images").glob("*.svg"))
NAMESPACE = "{http://www.w3.org/2000/svg}"
PHONE_PX, SMALLEST_PX = 358, 10
"""The width that a page has for a drawing on a phone, and the smallest size of letters there."""
ALT = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)]+)\)")


def test_every_picture_is_on_a_page_with_a_text_that_replaces_it() -> None:
    shown: dict[str, list[str]] = {}
    for page in DOCS.rglob("*.md"):
        for found in ALT.finditer(page.read_text(encoding="utf-8")):
            shown.setdefault((page.parent / found["target"]).resolve().name, []).append(found["alt"])
    assert {path.name for path in FILES} <= shown.keys()
    assert all(len(alt.split()) >= 5 for alts in shown.values() for alt in alts)
    assert len(FILES) >= 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_drawing_is_named_and_fits_a_phone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    drawing = ElementTree.fromstring(text)
    titles = {each.get("id") for each in drawing.iter(f"{NAMESPACE}title")}
    assert drawing.get("role") == "img"
    assert titles & {*str(drawing.get("aria-labelledby")).split()}
    assert "@media (prefers-color-scheme: dark)" in text
    width = float(str(drawing.get("viewBox")).split()[2])
    letters = [float(size) for size in re.findall(r"font(?:-size)?:[^;}]*?(\d+)px", text)]
    assert all(size * PHONE_PX / width >= SMALLEST_PX for size in letters)
    assert width <= 400, "a wider drawing has smaller letters on a phone"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_colour_is_one_of_its_schemes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    drawn = text.partition("</style>")[2]
    assert not re.findall(r"#[0-9a-f]{6}\b", drawn), "a colour that doesn't follow the scheme"
    names = set(re.findall(r"var\(--([\w-]+)\)", text))
    light, _, dark = text.partition("@media (prefers-color-scheme: dark)")
    for name in names:
        assert f"--{name}:" in light, name
        assert f"--{name}:" in dark.partition("</style>")[0], name
