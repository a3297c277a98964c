"""What a choice rests on, and where each piece of it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Input:
    """Something that the choice rests on, and where it is from: measured, told or assumed."""

    name: str
    value: str
    source: str
