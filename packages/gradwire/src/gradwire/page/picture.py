"""Pictures in a page: SVG, drawn by matplotlib in the page's colours."""

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
_NAMES = ("ink", "published", "band", "rule", "good", "near", "caution", "bad", "none")
COLOURS: Mapping[str, str] = MappingProxyType(
    {name: f"#01010{number}" for number, name in enumerate(_NAMES, 1)}
)
"""Placeholders for the page's colours, so that a picture follows the page's theme."""
SERIES: Mapping[str, str] = MappingProxyType(
    {f"series-{number}": colour for number, colour in enumerate((*CURVES, GREY))}
)
"""The colours of curves, by their names in the page's style."""
FONTS = ("DejaVu Sans", "Verdana", "sans-serif")
"""The font families of a picture's text, the widest first, so that labels fit in all of them."""
SETTINGS: Any = {
    "axes.formatter.useoffset": False,  # the offset's text would cover the legend
    "svg.hashsalt": "gradwire",  # makes the names of parts reproducible
    "svg.fonttype": "none",  # a path for each letter would be nine tenths of a picture's bytes
    "font.sans-serif": [FONTS[0]],  # installed with matplotlib; few fonts are wider, so labels fit in most
    "font.size": 9,
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), COLOURS["ink"]),
    "axes.edgecolor": COLOURS["rule"],
    "grid.color": COLOURS["rule"],
}
WIDTH_IN, NARROW_IN = 7.5, 3.6
"""A picture's widths for a wide window and for a phone, so that its text has the same size in both views."""
LOG_SCALE = ", log scale"
"""The suffix of the label of a logarithmic axis."""


@dataclass(frozen=True)
class Picture:
    """A picture of a page, which shows the wide or the narrow version, whichever fits the window."""

    name: str  # the picture's unique id on the page
    caption: str
    paint: Callable[[Figure], object]
    height_in: float
    narrow_height_in: float | None = None  # of the narrow version, by default ``height_in``


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(picture: Picture, *, narrow: bool = False) -> str:
    """Return the picture as an SVG element, whose ids begin with the picture's name."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    size = WIDTH_IN, picture.height_in
    if narrow:
        size = NARROW_IN, picture.narrow_height_in or picture.height_in
    file = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's settings would change the bytes
        matplotlib.rcParams.update(SETTINGS)
        drawn = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(drawn)
        picture.paint(drawn)
        drawn.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _inline(file.getvalue(), picture.name, "narrow" if narrow else "broad")


def _inline(svg: str, name: str, view: str) -> str:
    """Convert an SVG file to an element of a page, without style rules, metadata, size, and unused parts."""
    svg = svg[svg.index("<svg") :]
    for part in ("<!--.*?-->", "<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>", r"<defs>\s*</defs>"):
        svg = re.sub(rf"\s*{part}", "", svg, flags=re.DOTALL)
    viewed = re.search(r'viewBox="[^"]*"', svg)
    svg = _shortened(_numbered(svg).replace("xlink:href=", "href="))
    svg = re.sub(r'(\bid="|\bhref="#|url\(#)', rf"\g<1>{name}-{view}-", svg)
    for colour, stand_in in (*COLOURS.items(), *SERIES.items()):
        svg = svg.replace(stand_in, f"var(--{colour})")
    inside = svg[svg.index(">") + 1 :].strip()
    seen = f'{viewed[0] if viewed else ""} font-family="{", ".join(FONTS)}" fill="var(--ink)"'
    return f'<svg class="{view}" {seen} role="img" aria-labelledby="{name}-caption">{inside}\n'


_FAMILIES = re.compile(r"(font: [^;\"]*?px) [^;\"]*|font-family: [^;\"]*;? ?")
_DEFAULTS = re.compile(rf"(fill: {COLOURS['ink']}|stroke-linejoin: miter)(; |(?=\"))")
_EMPTY = re.compile(r' style=""| transform="rotate\(-?0 [^"]*"|<g/>')
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_LENGTHS = re.compile(r' (?:d|x|y|width|height)="[^"]*|translate\([^)]*')


def _shortened(svg: str) -> str:
    """Shorten an SVG: two decimals; no indents, unused ids, empty groups, and default styles."""
    used = {*re.findall(r'(?:href="|url\()#([^")]*)', svg)}
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = _FAMILIES.sub(lambda found: f"{found[1]} {', '.join(FONTS)}" if found[1] else "", svg)
    svg = _EMPTY.sub("", _DEFAULTS.sub("", svg).replace('; "', '"'))
    svg = re.sub(r'(?<= d=")[^"]*', lambda found: re.sub(r"\s*([A-Za-z]|$)\s*", r"\1", found[0]), svg)
    svg = _LENGTHS.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), svg)
    return re.sub(r"\n\s*", "\n", _without_plain_groups(svg))


def _without_plain_groups(svg: str) -> str:
    """Remove the tags of groups without attributes from an SVG."""
    kept = list[bool]()

    def tag(found: re.Match[str]) -> str:
        if found[0] != "</g>":
            kept.append(found[0] != "<g>")
            return found[0] if kept[-1] else ""
        return found[0] if kept.pop() else ""

    return re.sub(r"<g(?: [^>]*)?(?<!/)>|</g>", tag, svg)


def _numbered(svg: str) -> str:
    """Replace the hashes in the ids of an SVG's clips and markers with consecutive numbers.

    The hashes aren't reproducible, because matplotlib hashes all digits of a size, including the last ones,
    which differ between runs. The drawing itself is rounded to six decimals.
    """
    numbers: dict[str, int] = {}
    return re.sub(
        r'(?<=["#])([mp])[0-9a-f]{10}(?=[")])',
        lambda found: f"{found[1]}{numbers.setdefault(found[0], len(numbers) + 1)}",
        svg,
    )


# Elements of pictures that the pages of several kinds of records use.


def is_narrow(figure: Any) -> bool:
    """Return whether a figure is drawn for a phone, with names above bars, and panels below one another."""
    return bool(figure.get_figwidth() < 1.1 * NARROW_IN)


def panels(figure: Figure, count: int, *, share_y: bool = False) -> list[Axes]:
    """Add ``count`` empty plots to a figure, side by side, or below one another in a narrow figure."""
    shape = (count, 1) if is_narrow(figure) else (1, count)
    return [*figure.subplots(*shape, squeeze=False, sharey=share_y).flat]


def paint_bars(
    axes: Axes,
    names: Sequence[str],
    parts: Sequence[tuple[str, str, Sequence[float]]],
    label: str,
    font_size: int = 9,
) -> list[float]:
    """Draw a stacked horizontal bar for each name, the first at the top, and return the ends of the bars.

    ``parts`` are the bars' segments from left to right: a name, a colour, and a length for each bar.
    """
    ends = [0.0] * len(names)
    for name, colour, lengths in parts:
        axes.barh(range(len(names)), lengths, left=ends, height=bar_height(axes), color=colour, label=name)
        ends = [start + length for start, length in zip(ends, lengths, strict=True)]
    name_bars(axes, names, font_size)
    axes.set_xlabel(label)
    legend_above(axes, len(parts))
    without_frame(axes)
    return ends


def bar_height(axes: Axes) -> float:
    """Return the height of a horizontal bar, which leaves space for a name above it in a narrow figure."""
    return 0.4 if is_narrow(axes.figure) else 0.62


def name_bars(axes: Axes, names: Sequence[str], font_size: int = 9) -> None:
    """Write names left of horizontal bars, or above them in a narrow figure; the first bar is at the top."""
    axes.set_yticks(range(len(names)), names, parse_math=False, fontsize=font_size)
    axes.set_ylim(len(names) - 0.5, -0.5)
    if not is_narrow(axes.figure):
        return
    axes.set_ylim(len(names) - 0.7, -0.75)
    axes.tick_params(axis="y", length=0, labelleft=False)
    for place, name in enumerate(names):
        below = axes.get_yaxis_transform()
        axes.text(0, place - 0.24, name, transform=below, fontsize=8, va="bottom", parse_math=False)


def legend_above(axes: Axes, columns: int) -> None:
    """Place the legend above the plot, at its left, in fewer columns in a narrow figure."""
    _, names = axes.get_legend_handles_labels()
    if is_narrow(axes.figure):
        longest = max(map(len, names), default=1)
        columns = max(1, min(columns, NARROW_LEGEND // (longest + 6)))
    axes.legend(
        fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2
    )


NARROW_LEGEND = 54
"""The width of a legend in a narrow figure, in characters. A colour sample with its gap counts as six."""


def log_axis(axes: Axes, which: str, label: str, base: float = 10) -> None:
    """Make the axis ``which``, ``"x"`` or ``"y"``, logarithmic, and add ``LOG_SCALE`` to its label."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=base)
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(f"{label}{LOG_SCALE}")


def without_frame(axes: Axes) -> None:
    """Hide the top and right sides of a plot, which have no scales."""
    axes.spines[["top", "right"]].set_visible(False)
