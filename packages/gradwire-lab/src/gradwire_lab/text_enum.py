"""Enumerations whose members are text: ``enum.StrEnum``, which Python 3.10 lacks."""

from __future__ import annotations

from enum import Enum


class TextEnum(str, Enum):
    """The base class of enumerations whose members are text, also in an f-string."""

    __str__ = str.__str__
