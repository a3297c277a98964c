"""The plot of an exhibit's claims: measured and published figures, and the range that the rule allows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gradwire.page.picture import COLOURS, LOG_SCALE, Picture, is_narrow
from gradwire_lab.experiments.claim import RATIO, SHARE, Claim, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_IN, MARGIN_IN = 0.36, 0.65
UNITS = {SHARE: "share [%]", RATIO: "ratio [x]", "": "value"}
LABEL, NARROW_LABEL = 40, 26
"""The characters per line of a label, which has at most two lines, on a screen and on a phone."""
LOGARITHMIC = 50
"""The ratio of the largest to the smallest figure above which the scale becomes logarithmic."""


def plot(claims: Sequence[Claim], name: str, caption: str) -> Picture | None:
    """Return a picture with a row per claim and a scale per unit, or None without a finite figure."""
    drawn = [claim for claim in claims if [*_finite(claim.figures.values())]]
    if not drawn:
        return None
    units = dict.fromkeys(claim.unit for claim in drawn)
    groups = [[claim for claim in drawn if claim.unit == unit] for unit in units]
    heights = [LINE_IN * len(group) + MARGIN_IN for group in groups]

    def paint(figure: Figure) -> None:
        every = figure.subplots(len(groups), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, group in zip(every[:, 0], groups, strict=True):
            _draw(axes, group)

    return Picture(name, caption, paint, sum(heights))


def _draw(axes: Axes, claims: Sequence[Claim]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    least, most = _scale(axes, claims)
    ink, published = COLOURS["ink"], COLOURS["published"]
    for line, claim in enumerate(claims):
        ends = (claim.wanted.least, claim.wanted.most)
        band = [min(max(end, least), most) for end in ends]
        axes.plot(band, [line, line], color=COLOURS["band"], linewidth=8, solid_capstyle="butt")
        inside = [end for end in ends if least <= end <= most]
        axes.plot(inside, [line] * len(inside), "|", color=ink, markersize=11)
        values = [*_published(claim)]
        axes.plot(values, [line] * len(values), "D-", color=published, fillstyle="none", markersize=8)
        figures = [*_finite(claim.figures.values())]
        if len(figures) > 1:
            axes.plot(figures, [line] * len(figures), "o", color=ink, markersize=3)
        mean = [*_finite([claim.mean])]
        axes.plot(mean, [line] * len(mean), "o" if claim.is_met else "X", color=ink, markersize=6)
    narrow = is_narrow(axes.figure)
    width = NARROW_LABEL if narrow else LABEL
    wrapped = [textwrap.wrap(each.title, width, max_lines=2, placeholder=" ...") for each in claims]
    labels = ["\n".join(lines) for lines in wrapped]
    axes.set_yticks(range(len(claims)), labels, parse_math=False, fontsize=7 if narrow else 9)
    axes.set_ylim(len(claims) - 0.4, -0.6)
    unit = claims[0].unit
    is_log = axes.get_xscale() == "log"
    axes.set_xlabel(f"{UNITS.get(unit, f'figure [{unit}]')}{LOG_SCALE if is_log else ''}")
    if narrow and not is_log:
        axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: shown(value, unit)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _scale(axes: Axes, claims: Sequence[Claim]) -> tuple[float, float]:
    """Set the scale of the axis and return its ends, slightly beyond all figures and bounds."""
    values = [value for claim in claims for value in (*_finite(claim.figures.values()), *_published(claim))]
    values += _finite([end for claim in claims for end in (claim.wanted.least, claim.wanted.most)])
    least, most = min(values), max(values)
    if least > 0 and most > LOGARITHMIC * least:
        axes.set_xscale("log")
        least, most = least / 1.5, most * 1.5
    else:
        beyond = 0.08 * (most - least) or 0.1 * abs(most) or 1.0
        least, most = least - beyond, most + beyond
    axes.set_xlim(least, most)
    return least, most


def _published(claim: Claim) -> Iterator[float]:
    value = None if claim.published is None else claim.published.value
    return _finite(value if isinstance(value, tuple) else [value])


def _finite(values: object) -> Iterator[float]:
    return (each for each in values if each is not None and math.isfinite(each))  # type: ignore[attr-defined]
