"""What records say of their origin: the machine, the versions, the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.page.markup import Markup, element, together
from gradwire.page.picture import can_draw
from gradwire.page.tables import table
from gradwire.version import how_to_install

MADE_WITH = ("machine", "versions", "commit", "commits")
"""Fields of a record that say where it is from."""
ID = "machine"
TITLE = "Machine and versions"


def made_with(records: Sequence[tuple[str, Mapping[str, Any]]]) -> Markup:
    """Return a table for each machine, versions, and commit, with the names of the records made there."""
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, fields in records:
        same = json.dumps([fields.get(each) for each in MADE_WITH], sort_keys=True)
        groups.setdefault(same, []).append((name, fields))
    parts = [element("h2", TITLE, id=ID)]
    for group in groups.values():
        names = ", ".join(name for name, _ in group)
        parts.append(
            table(f"Record{'s' * (len(group) > 1)} of {names}", ("what", "value"), _lines(group[0][1]))
        )
    if not can_draw():
        parts.append(
            element("p", f"For plots, install matplotlib: {how_to_install('train')}.", class_="note")
        )
    return together(*parts, between="\n")


def options_in_words(options: Mapping[str, Any]) -> str:
    """Return a record's options as a sentence."""
    said = "; ".join(f"{name} {'none' if value is None else plain(value)}" for name, value in options.items())
    return f"Options: {said or 'none'}."


def plain(value: object) -> str:
    """Return a value of JSON as people read it."""
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _lines(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values; what has names of its own takes a line for each."""
    lines: list[tuple[str, str]] = []
    for name in MADE_WITH:
        if name.startswith("commit") and name not in fields:
            continue  # most kinds of records don't say it
        value = fields.get(name)
        if name == "commits" and isinstance(value, Mapping):
            value = {"rows by commit": value}
        several = value if isinstance(value, Mapping) else {name: value}
        lines += [(key, plain(each)) for key, each in several.items()]
    return lines
