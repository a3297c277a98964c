"""HTML elements from names and children; whatever isn't an element is escaped."""

from __future__ import annotations

from html import escape

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
