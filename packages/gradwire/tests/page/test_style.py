from __future__ import annotations

import re

import pytest

from gradwire.page import Report, render_all
from gradwire.page.picture import COLOURS, SERIES

READ = ("ink", "muted", "link", "good", "near", "caution", "bad", "none")
HTML = render_all(Report("A run", "It was fast.", []), [])


def inside(tag: str) -> str:
    """Return what the page's only element of this name holds."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", HTML, re.DOTALL)
    return str(content)


def colours(rule: str) -> dict[str, str]:
    """Return the colours that a rule of the style sets, by name."""
    block = inside("style").partition(f"{rule} {{")[2].partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


LIGHT, DARK, PREFERRED = map(colours, (":root", ":root[data-theme=dark]", ":root:not([data-theme=light])"))


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
    assert PREFERRED == DARK
    assert {*re.findall(r"var\(--([\w-]+)\)", inside("style"))} <= {*LIGHT}
    assert "prefers-color-scheme: dark" in inside("style")
    assert "@media print" in inside("style")


def test_neither_style_nor_script_ends_early_or_loads_anything() -> None:
    for content in (inside("style"), inside("script")):
        assert "</" not in content
        assert not re.search(r"//|@import|url\(|fetch|import\(", content)
        assert content.count("{") == content.count("}")
