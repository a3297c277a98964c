from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import matplotlib
import matplotlib.figure
import pytest

from gradwire import page as module
from gradwire.page import Picture, Report, Section, render_all
from gradwire.page.picture import (
    COLOURS,
    CURVES,
    NARROW_IN,
    WIDTH_IN,
    can_draw,
    draw,
    legend_above,
    log_axis,
    paint_bars,
    panels,
)
from support.pages import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def paint(drawn: Figure) -> None:
    axes = drawn.subplots()
    axes.plot([1, 2], [1, 3], "o-", color=CURVES[0], label="$1 & <2>")
    axes.plot([1, 2], [2, 3], color=COLOURS["published"])
    axes.grid()


PICTURE = Picture("losses", "What <b>falls</b>", paint, 2.0)


def test_the_picture_is_an_element_without_addresses_sizes_or_rules_for_others() -> None:
    made = draw(PICTURE)
    page = Page(made)
    assert not re.search(r"http|<style|<metadata|<\?xml|<!|width=\"\d+pt", made)
    tag, attributes = page.attributes[0]
    assert (tag, attributes["role"], attributes["aria-labelledby"]) == ("svg", "img", "losses-caption")
    assert len(page.ids) == len({*page.ids})
    assert all(each.startswith("losses-") for each in page.ids)
    used = {*re.findall(r'(?:href="|url\()#([^")]*)', made)}
    assert used
    assert used <= {*page.ids}


def test_its_letters_are_text_and_parts_without_effect_are_left_out() -> None:
    made = draw(PICTURE)
    page = Page(made)
    assert {"1.0", "2.0", "3.0"} <= {*re.split(r"\s*\n\s*", page.text)}
    assert "font-family" in page.attributes[0][1]
    assert made.count("font-family") == 1
    assert not re.search(r"<g>|<g/>|\n |\d\.\d{3}", made)
    assert {*page.ids} == {*re.findall(r'(?:href="|url\()#([^")]*)', made)}


def test_a_log_scale_s_powers_and_bold_texts_keep_their_look() -> None:
    def paint(drawn: Figure) -> None:
        axes = drawn.subplots()
        axes.loglog([1, 1e4], [1, 1e4])
        axes.set_title("bold & <b>", fontweight="bold")

    made = draw(replace(PICTURE, paint=paint))
    assert re.search(r"<tspan[^>]*>1<", made)
    assert re.search(r'font(-weight)?: (bold|700)[^"]*"[^>]*>bold &amp; &lt;b&gt;<', made)


def test_its_colours_are_the_page_s() -> None:
    made = draw(PICTURE)
    assert {*re.findall(r"var\(--([\w-]+)\)", made)} >= {"ink", "rule", "published", "series-0"}
    assert not re.search(r"#[0-9a-f]{6}\b", made)


def test_the_same_picture_has_the_same_bytes_whatever_the_reader_s_settings() -> None:
    first = draw(PICTURE)
    with matplotlib.rc_context({"svg.hashsalt": None, "font.size": 20, "svg.fonttype": "path"}):
        assert draw(PICTURE) == first
        assert matplotlib.rcParams["font.size"] == 20
    assert draw(replace(PICTURE, height_in=3.0)) != first


def test_a_size_that_differs_in_its_last_digits_gives_the_same_bytes() -> None:
    def wider(by: float, drawn: Figure) -> None:
        drawn.set_layout_engine("none")
        axes = drawn.add_axes((0.2, 0.2, 0.7 * by, 0.7))
        axes.plot([1, 2], [1, 1], "o-")

    pages = [draw(replace(PICTURE, paint=partial(wider, by))) for by in (1.0, 1 + 2e-15)]
    assert pages[0] == pages[1]
    assert re.search(r'clip-path="url\(#losses-broad-p\d\)', pages[0])


def test_its_caption_is_its_name_and_without_matplotlib_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(hero: Picture | None = None) -> str:
        return render_all(Report("A run", "Fast.", [Section("Curves", [PICTURE])], hero), [])

    assert can_draw()
    page = Page(made())
    assert page.text.rstrip().endswith("What <b>falls</b>")
    assert "losses-caption" in page.ids
    html = made(replace(PICTURE, name="hero", caption="The verdict"))
    assert html.index("The verdict") < html.index("<section")
    monkeypatch.setattr(module, "can_draw", lambda: False)
    assert "<figure" not in made()
    bare = Page(made(replace(PICTURE, name="hero"))).text
    assert re.search(r"has no plots.*pip install '\./packages/gradwire\[plots\]'", bare)


def test_a_page_has_each_picture_for_wide_windows_and_for_phones_and_shows_one_of_them() -> None:
    html = render_all(Report("A run", "Fast.", [], PICTURE), [])
    page = Page(html)
    drawn = [each for tag, each in page.attributes if tag == "svg"]
    assert [each["class"] for each in drawn] == ["broad", "narrow"]
    assert len(page.ids) == len({*page.ids})
    wide, narrow = (each["viewbox"].split()[2] for each in drawn if each["viewbox"])
    assert (float(wide), float(narrow)) == (72 * WIDTH_IN, 72 * NARROW_IN)
    assert re.search(r"svg\.narrow \{ display: none", html)
    assert re.search(r"max-width: 40rem\) \{[^@]*svg\.broad \{ display: none", html)


def figure_of(width_in: float) -> Figure:
    return matplotlib.figure.Figure(figsize=(width_in, 3.0))


def test_panels_stand_side_by_side_or_above_one_another_on_a_phone() -> None:
    for width_in, same in ((WIDTH_IN, "y0"), (NARROW_IN, "x0")):
        one, two = (each.get_position() for each in panels(figure_of(width_in), 2))
        assert getattr(one, same) == getattr(two, same)


def test_bars_have_their_names_at_their_left_or_above_them_on_a_phone() -> None:
    for width_in in (WIDTH_IN, NARROW_IN):
        axes = figure_of(width_in).subplots()
        ends = paint_bars(
            axes, ["a $b$", "c"], [("x", CURVES[0], [1, 2]), ("y", CURVES[1], [3, 4])], "time [ms]"
        )
        assert ends == [4, 6]
        beside, above = (
            [each.get_text() for each in texts] for texts in (axes.get_yticklabels(), axes.texts)
        )
        shown = (above, beside) if width_in == NARROW_IN else (beside, above)
        assert shown == (["a $b$", "c"], [])
        assert axes.get_xlabel() == "time [ms]"


def test_an_axis_with_a_logarithmic_scale_says_so() -> None:
    axes = figure_of(WIDTH_IN).subplots()
    log_axis(axes, "x", "hosts", base=2)
    log_axis(axes, "y", "time [ms]")
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "hosts, log scale")
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "time [ms], log scale")


def test_a_legend_has_fewer_columns_on_a_phone() -> None:
    for width_in, columns in ((WIDTH_IN, 3), (NARROW_IN, 2)):
        axes = figure_of(width_in).subplots()
        for name in ("compute", "codec", "exposed communication"):
            axes.plot([1, 2], label=name)
        legend_above(axes, 3)
        legend = axes.get_legend()
        assert legend is not None
        assert legend._ncols == columns  # type: ignore[attr-defined]
