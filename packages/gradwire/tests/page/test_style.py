from __future__ import annotations

import re

import pytest

from gradwire.page.markup import DARK, LIGHT, SERIES, script, style
from gradwire.page.tables import COLOURS

READ = ("ink", "muted", "link", "good", "near", "caution", "bad", "none")


def luminance(colour: str) -> float:
    """Return WCAG 2's relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return sum(share * each for share, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    lower, higher = sorted((luminance(one), luminance(other)))
    return (higher + 0.05) / (lower + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_texts_contrast_with_what_is_behind_them(theme: dict[str, str]) -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for behind in ("paper", "panel"):
        assert min(contrast(theme[name], theme[behind]) for name in READ) >= 4.5  # WCAG 2, level AA
    assert contrast(theme["published"], theme["paper"]) >= 3
    assert contrast(theme["ink"], theme["band"]) >= 3
    assert min(contrast(theme[name], theme["paper"]) for name in SERIES) >= 3


def test_both_themes_have_every_colour_and_the_sheet_uses_no_other() -> None:
    assert {*LIGHT} == {*DARK} >= {*COLOURS, *SERIES, *READ}
    assert {*re.findall(r"var\(--([\w-]+)\)", style())} <= {*LIGHT}
    assert "prefers-color-scheme: dark" in style()
    assert "@media print" in style()


def test_neither_style_nor_script_ends_early_or_loads_anything() -> None:
    for content in (style(), script()):
        assert "</" not in content
        assert not re.search(r"//|@import|url\(|fetch|import\(", content)
    assert script().count("{") == script().count("}")
