"""Tables that can be sorted and, on a narrow screen, scrolled."""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.page.markup import SERIES, Markup, element, together
from gradwire.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FIGURE = re.compile(r"[^\d-]*(-?[\d.]+(?:e[+-]?\d+)?) ?([A-Za-zµ]*)")
_UNITS = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


@dataclass(frozen=True)
class Mark:
    """A word that judges, with its sign and colour: neither of them alone tells it.

    ``tone`` is a name of a colour of ``style``: good, near, caution, bad, or none.
    """

    word: str
    sign: str
    tone: str


@dataclass(frozen=True)
class Number:
    """A cell that is sorted by a number; None is sorted behind all."""

    text: str
    key: float | None


Cell = str | Number


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], total: Sequence[Cell] = ()
) -> Markup:
    """Return a table in a box that scrolls; a row's first cell names it, and ``total`` stays at the end."""
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    parts = [element("caption", caption), element("thead", head), element("tbody", *map(_row, rows))]
    if total:
        parts.append(element("tfoot", _row(total)))
    return scrolled(caption, element("table", together(*parts, between="\n"), class_="sortable"))


def scrolled(label: str, content: Markup) -> Markup:
    """Return a box around wide content, which the keyboard can reach and scroll, too."""
    return element("div", content, class_="wide", role="region", tabindex="0", aria_label=label)


def shown(caption: str, content: Table) -> Markup:
    """Return a table for a terminal as one for a page: figures are sorted by what their texts say."""
    kept = content.without_empty()
    columns = [f"{each.name} ({each.unit})" if each.unit else each.name for each in kept.columns]
    rows: list[list[Cell]] = [
        [
            text if column.is_text else Number(text, magnitude(text))
            for column, text in zip(kept.columns, row, strict=True)
        ]
        for row in kept.rows
    ]
    total = rows.pop() if kept.has_total else ()
    return table(caption, columns, rows, total)


def magnitude(text: str) -> float | None:
    """Return the number that a text begins with, times its unit's prefix; None without one.

    Examples
    --------
    >>> magnitude("250ms"), magnitude("4KiB"), magnitude("3.5x"), magnitude("100mbit"), magnitude("-")
    (0.25, 4096.0, 3.5, 100000000.0, None)
    """
    found = _FIGURE.match(text)
    if found is None:
        return None
    try:
        number = float(found[1])
    except ValueError:
        return None
    return number * _prefix(found[2])


def _prefix(unit: str) -> float:
    if unit.endswith("bit"):  # whose prefixes are small letters, as in mbit
        return {"k": 1e3, "m": 1e6, "g": 1e9}.get(unit[:-3].lower(), 1.0)
    if unit[:2] in _BINARY:
        return _BINARY[unit[:2]]
    return _UNITS.get(unit[0], 1.0) if len(unit) > 1 or unit in ("k", "M", "G") else 1.0


def marked(mark: Mark) -> Markup:
    """Return the word with its sign and colour."""
    sign = element("span", mark.sign, aria_hidden="true")
    return element("span", sign, f" {mark.word}", class_="mark", style=f"color: var(--{mark.tone})")


def _row(cells: Sequence[Cell]) -> Markup:
    first, *others = cells
    text = first.text if isinstance(first, Number) else first
    named = element("th", text, scope="row", **_key(first))
    return together(element("tr", named, *map(_cell, others)), Markup("\n"))


def _cell(cell: Cell) -> Markup:
    if not isinstance(cell, Number):
        return element("td", cell)
    (key,) = _key(cell).values()
    return Markup(f'<td class="number" data-sort="{key}">{together(cell.text)}</td>')


def _key(cell: Cell) -> dict[str, str]:
    """Return the attribute by which the script sorts a number; empty if it isn't known."""
    if not isinstance(cell, Number):
        return {}
    return {"data_sort": "" if cell.key is None or not math.isfinite(cell.key) else repr(float(cell.key))}


# Pictures inside a page: matplotlib's SVG, whose colours are the page's own.

COLOURS: Mapping[str, str] = MappingProxyType(
    {"ink": "#010101", "published": "#010102", "band": "#010103", "rule": "#010104"}
)
"""Stand-ins, which become the page's own colours, so that a picture follows its theme."""
SETTINGS: Any = {
    "svg.hashsalt": "gradwire",  # names of parts are the same each time
    "svg.fonttype": "path",
    "font.size": 9,
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), COLOURS["ink"]),
    "axes.edgecolor": COLOURS["rule"],
    "grid.color": COLOURS["rule"],
}
WIDTH_IN = 7.5


@dataclass(frozen=True)
class Picture:
    """A picture that a page may have: how it is painted, its size in inches, and what it shows.

    ``name`` is an id of its own on the page; ``paint`` draws into matplotlib's figure.
    """

    name: str
    caption: str
    paint: Callable[[Figure], object]
    height_in: float
    width_in: float = WIDTH_IN


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figure(picture: Picture) -> Markup:
    """Return the figure with its caption; nothing where matplotlib is missing."""
    if not can_draw():
        return Markup()
    box = scrolled(f"Plot of {picture.name}", draw(picture))
    return element("figure", box, element("figcaption", picture.caption, id=f"{picture.name}-caption"))


def draw(picture: Picture) -> Markup:
    """Return the picture as an SVG, whose own names begin with that of the picture."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the reader's own settings would change the bytes
        matplotlib.rcParams.update(SETTINGS)
        drawn = Figure(figsize=(picture.width_in, picture.height_in), layout="constrained")
        FigureCanvasSVG(drawn)
        picture.paint(drawn)
        drawn.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _inline(file.getvalue(), picture.name)


def _inline(svg: str, name: str) -> Markup:
    """Return an SVG file as an element of a page: no rules for others, no address, no size of its own."""
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
    return Markup(f'<svg {seen} role="img" aria-labelledby="{name}-caption">{inside}\n')


def _numbered(svg: str) -> str:
    """Return an SVG whose clips and markers have numbers in their order instead of hashes.

    Matplotlib hashes all digits of a size, of which the layout's solver doesn't always give the last ones
    alike; what is drawn has six decimals.
    """
    numbers: dict[str, int] = {}
    return re.sub(
        r'(?<=["#])([mp])[0-9a-f]{10}(?=[")])',
        lambda found: f"{found[1]}{numbers.setdefault(found[0], len(numbers) + 1)}",
        svg,
    )
