"""The tables of an automatic choice, generated from the code's own tables: transitions, and thresholds."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.settings import DEFAULT
from gradwire.autotune.states import TRANSITIONS

FACT = re.compile(r"\{[^}]*\}")
"""The placeholder of a number in a transition's log line."""


def transitions() -> str:
    """Return a row for every transition: its states, its condition, its action, and its log line."""
    rows = ["| # | from | condition | action | to | logged as |", "|---|---|---|---|---|---|"]
    for each in TRANSITIONS:
        source, target = each.source or "any", each.target or "the same"
        states = [state if isinstance(state, str) else state.value for state in (source, target)]
        condition, said = each.event.value.replace("``", "`"), FACT.sub("...", each.says)
        rows.append(
            f"| {each.number} | {states[0]} | {condition} | {sentence(each.action)} | {states[1]} | {said} |"
        )
    return "\n".join(rows)


def thresholds() -> str:
    """Return a row for every field of ``AutoConfig``: its value, its unit, and its reason."""
    rows = ["| field | default | unit | why |", "|---|---|---|---|"]
    for each in fields(DEFAULT):
        value, about = getattr(DEFAULT, each.name), each.metadata
        rows.append(f"| `{each.name}` | {value} | {about['unit']} | {about['why']} |")
    return "\n".join(rows)


def sentence(method: str) -> str:
    """Return the first sentence of a method's docstring, without its full stop, as Markdown."""
    text = inspect.getdoc(getattr(Autotuner, method)) or ""
    return text.splitlines()[0].rstrip(".").replace("``", "`")
