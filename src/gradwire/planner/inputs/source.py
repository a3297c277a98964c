"""The inputs that a choice is based on, with their sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Input:
    """An input of the choice, and its source: measured, given, or assumed."""

    name: str
    value: str
    source: str
