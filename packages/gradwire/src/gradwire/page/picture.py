"""Pictures in a page: SVG by matplotlib, with the page's colours."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#000000")
"""The colours of curves, which colour-blind readers can distinguish (Okabe and Ito)."""
GREY = "#4d4d4d"
"""The colour of elements behind the curves."""
COLOURS: Mapping[str, str] = MappingProxyType(
    {"ink": "#010101", "published": "#010102", "band": "#010103", "rule": "#010104"}
)
"""Placeholders for the page's colours, so that a picture follows the page's theme."""
SERIES: Mapping[str, str] = MappingProxyType(
    {f"series-{number}": colour for number, colour in enumerate((*CURVES, GREY))}
)
"""The colours of curves, by their names in the page's style."""
SETTINGS: Any = {
    "svg.hashsalt": "gradwire",  # makes the names of parts reproducible
    "svg.fonttype": "path",
    "font.size": 9,
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), COLOURS["ink"]),
    "axes.edgecolor": COLOURS["rule"],
    "grid.color": COLOURS["rule"],
}
WIDTH_IN = 7.5


@dataclass(frozen=True)
class Picture:
    """A picture of a page: its caption, its size in inches, and ``paint``, which draws a matplotlib figure.

    ``name`` is its unique id on the page.
    """

    name: str
    caption: str
    paint: Callable[[Figure], object]
    height_in: float
    width_in: float = WIDTH_IN


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(picture: Picture) -> str:
    """Return the picture as an SVG element, whose ids begin with the picture's name."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's settings would change the bytes
        matplotlib.rcParams.update(SETTINGS)
        drawn = Figure(figsize=(picture.width_in, picture.height_in), layout="constrained")
        FigureCanvasSVG(drawn)
        picture.paint(drawn)
        drawn.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _inline(file.getvalue(), picture.name)


def _inline(svg: str, name: str) -> str:
    """Return an SVG file as an element of a page, without style rules, metadata, and size."""
    svg = svg[svg.index("<svg") :]
    for part in ("<!--.*?-->", "<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>", r"<defs>\s*</defs>"):
        svg = re.sub(rf"\s*{part}", "", svg, flags=re.DOTALL)
    viewed = re.search(r'viewBox="[^"]*"', svg)
    svg = _numbered(svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'(\bid="|\bhref="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, stand_in in (*COLOURS.items(), *SERIES.items()):
        svg = svg.replace(stand_in, f"var(--{colour})")
    inside = svg[svg.index(">") + 1 :].strip()
    seen = viewed[0] if viewed else ""
    return f'<svg {seen} role="img" aria-labelledby="{name}-caption">{inside}\n'


def _numbered(svg: str) -> str:
    """Return an SVG with consecutive numbers instead of hashes in the ids of clips and markers.

    Matplotlib hashes all digits of a size, and the last digits of the layout aren't reproducible. The drawing
    itself is rounded to six decimals.
    """
    numbers: dict[str, int] = {}
    return re.sub(
        r'(?<=["#])([mp])[0-9a-f]{10}(?=[")])',
        lambda found: f"{found[1]}{numbers.setdefault(found[0], len(numbers) + 1)}",
        svg,
    )


# Elements that the pictures of several records share.


def paint_bars(
    axes: Axes,
    names: Sequence[str],
    parts: Sequence[tuple[str, str, Sequence[float]]],
    label: str,
    font_size: int = 9,
) -> list[float]:
    """Draw a stacked horizontal bar for each name, the first at the top; return the ends of the bars.

    Parameters
    ----------
    axes
        An empty plot.
    names
        The names of the bars.
    parts
        The parts of all bars from left to right: a name, a colour, and a length for each bar.
    label
        The label of the length axis, with its unit.
    font_size
        The size of the bars' names, in points.
    """
    places, ends = range(len(names)), [0.0] * len(names)
    for name, colour, lengths in parts:
        axes.barh(places, lengths, left=ends, height=0.62, color=colour, label=name)
        ends = [start + length for start, length in zip(ends, lengths, strict=True)]
    axes.set_yticks(places, names, parse_math=False, fontsize=font_size)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    legend_above(axes, len(parts))
    without_frame(axes)
    return ends


def legend_above(axes: Axes, columns: int) -> None:
    """Place the legend above the plot, at its left."""
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)


def without_frame(axes: Axes) -> None:
    """Hide the top and right sides of a plot, which have no scales."""
    axes.spines[["top", "right"]].set_visible(False)
