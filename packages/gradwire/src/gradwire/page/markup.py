"""HTML elements from names and children; whatever isn't an element is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from types import MappingProxyType

VOID = frozenset({"link", "meta"})
"""Elements of the page that have neither children nor an end tag."""


class Markup(str):
    """Text that is HTML already. Only this module, the style, and the plots make it from strings."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Markup:
    """Return an element with its children, which are escaped unless they are ``Markup``.

    In the names of attributes, a trailing ``_`` is dropped, and ``_`` stands for ``-``. An empty value gives
    an attribute without one.

    Examples
    --------
    >>> element("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    named = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{named}>")
    return Markup(f"<{name}{named}>{together(*children)}</{name}>")


def together(*children: str, between: str = "") -> Markup:
    """Return children one after the other, escaped unless they are ``Markup``."""
    return Markup(between.join(each if isinstance(each, Markup) else escape(each) for each in children))


def _attribute(key: str, value: str) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f' {name}="{escape(value)}"' if value else f" {name}"


# The colours of curves and bars in every plot, and what the page's themes make of them.

CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart; after them style and marker change."""
GREY = "#4d4d4d"
"""What stands behind the others."""
SERIES: Mapping[str, str] = MappingProxyType(
    {f"series-{number}": colour for number, colour in enumerate((*CURVES, GREY))}
)
"""Their names in a page."""
LIGHT_SERIES: Mapping[str, str] = MappingProxyType(
    {**SERIES, "series-3": "#b4578c", "series-4": "#a87000", "series-5": "#2f8fca"}
)
DARK_SERIES: Mapping[str, str] = MappingProxyType(
    {
        **SERIES,
        "series-0": "#4da6e0",
        "series-1": "#f0813a",
        "series-2": "#2fc498",
        "series-6": "#c08b7f",
        "series-7": "#e6edf3",
        "series-8": "#8d98a5",
    }
)
"""The same, as far as it must be lighter or darker to stand out from the page."""


# How the page looks, and its script: themes, tables that sort, and print. Both are inside the page.

LIGHT: Mapping[str, str] = MappingProxyType(
    {
        "paper": "#ffffff",
        "panel": "#f3f5f7",
        "ink": "#1b1f24",
        "muted": "#525b66",
        "rule": "#c4ccd4",
        "link": "#0550ae",
        "band": "#a9c8e8",
        "published": "#b04500",
        "good": "#116329",
        "near": "#0550ae",
        "caution": "#7a4a00",
        "bad": "#a40e26",
        "none": "#525b66",
        **LIGHT_SERIES,
    }
)
DARK: Mapping[str, str] = MappingProxyType(
    {
        "paper": "#0f1318",
        "panel": "#1a2027",
        "ink": "#e6edf3",
        "muted": "#a3adb8",
        "rule": "#39424c",
        "link": "#79c0ff",
        "band": "#2b4c70",
        "published": "#ffa657",
        "good": "#56d364",
        "near": "#79c0ff",
        "caution": "#e3b341",
        "bad": "#ff8a80",
        "none": "#a3adb8",
        **DARK_SERIES,
    }
)
"""Names of colours, those of marks and curves among them, which every theme has."""

SHEET = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--rule); }
a { color: var(--link); }
.note, caption, figcaption { color: var(--muted); font-size: 0.9rem; text-align: left; }
nav a { display: inline-block; margin-right: 0.75rem; padding: 0.15rem 0; }
.answer { font-size: 1.25rem; font-weight: 600; }
.wide { overflow-x: auto; margin: 1rem 0; }
.wide:focus-visible, button:focus-visible, a:focus-visible { outline: 3px solid var(--link); }
table { border-collapse: collapse; overflow-wrap: normal; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
thead th, tfoot th, tfoot td { background: var(--panel); }
tbody th { min-width: min(12rem, 34vw); font-weight: normal; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.mark { white-space: nowrap; font-weight: 600; }
ul.figures { margin: 0; padding: 0; list-style: none; color: var(--muted); }
figure { margin: 1rem 0; }
svg { display: block; width: 100%; min-width: 36rem; max-width: 48rem; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
button { font: inherit; color: inherit; background: none; border: 1px solid var(--rule);
  border-radius: 0.3rem; padding: 0.2rem 0.6rem; cursor: pointer; }
th button { border: 0; padding: 0; font-weight: inherit; text-align: inherit; }
th button::after { content: "\\00a0\\2195"; color: var(--muted); }
th[aria-sort=ascending] button::after { content: "\\00a0\\2191"; }
th[aria-sort=descending] button::after { content: "\\00a0\\2193"; }
#theme { float: right; }
[hidden] { display: none; }
@media print {
  button::after, #theme, nav { display: none; }
  body { max-width: none; font-size: 10pt; }
  .wide { overflow: visible; }
  svg { min-width: 0; }
  tr, figure { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""

SCRIPT = """
"use strict";
const root = document.documentElement, theme = document.getElementById("theme");
const isDark = () => root.dataset.theme
  ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
theme.hidden = false;
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; });
const keyOf = (row, column) => {
  const cell = row.cells[column], key = cell.dataset.sort;
  return key === undefined ? cell.textContent : key === "" ? Infinity : Number(key);
};
const before = (a, b) => typeof a === "number" && typeof b === "number"
  ? (a < b ? -1 : a > b ? 1 : 0) : String(a).localeCompare(String(b), "en", { numeric: true });
const order = (a, b, sign) => a === Infinity || b === Infinity
  ? (a === Infinity) - (b === Infinity) : sign * before(a, b); /* what has no number stays last */
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1, body = table.tBodies[0];
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => order(keyOf(a, column), keyOf(b, column), sign)));
    });
  });
}
"""


def style() -> Markup:
    """Return the style element's content: the light theme, unless the system or the reader prefers dark."""
    light, dark = _variables(LIGHT, "light"), _variables(DARK, "dark")
    return Markup(
        f":root {light}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {dark} }}\n"
        f"@media screen {{ :root[data-theme=dark] {dark} }}{SHEET}"
    )


def script() -> Markup:
    """Return the script element's content: sorting, and the switch of themes."""
    return Markup(SCRIPT)


def _variables(colours: Mapping[str, str], scheme: str) -> str:
    return f"{{ color-scheme: {scheme}; " + " ".join(f"--{k}: {v};" for k, v in colours.items()) + " }"
