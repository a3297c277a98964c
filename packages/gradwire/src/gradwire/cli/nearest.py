"""Suggestions of the nearest known name for a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'NAME'?)"`` for the known name nearest to ``word``, or ``""`` if none is near.

    Examples
    --------
    >>> suggestion("trane", ["plan", "train"])
    " (did you mean 'train'?)"
    >>> suggestion("xyz", ["plan", "train"])
    ''
    """
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
