"""HTML pages, parsed and checked: tags that close, what they would load, headings, and tables."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"link", "meta"}
LOADS = {"src", "srcset", "action", "data", "poster", "xlink:href"}
"""Attributes that make a browser load something; ``href`` depends on the element."""


class Page(HTMLParser):
    """A page's headings, captions, rows, ids, and visible text. Fails for wrong nesting."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.rows: list[list[str]] = []
        self.captions: list[str] = []
        self.tables = 0
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.scopes: list[str | None] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, dict(attrs))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append((int(tag[1]), ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag == "th":
            self.scopes.append(dict(attrs).get("scope"))
        if tag == "caption":
            self.captions.append("")
        self.tables += tag == "table"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"HTML has no <{tag}/>"
        self._note(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.style += data
            return
        if "script" in self.open:
            return
        self.text += data
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data
        if "caption" in self.open:
            self.captions[-1] += data
        if self.open and self.open[-1] in ("h1", "h2", "h3", "h4"):
            level, text = self.headings[-1]
            self.headings[-1] = level, text + data

    def _note(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.attributes.append((tag, attributes))
        if attributes.get("id"):
            self.ids.append(str(attributes["id"]))
        for name, value in attributes.items():
            if name in LOADS or (name == "href" and tag != "a"):
                self.loads.append(str(value))
            elif name == "href":
                self.links.append(str(value))
