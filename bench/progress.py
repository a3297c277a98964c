"""Print one line to standard error for every measured row, to show progress during minutes of measuring."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def tell(row: Mapping[str, object]) -> None:
    """Show the words and numbers of a row at once; lists, such as curves, are for the record."""
    words = {name: value for name, value in row.items() if isinstance(value, (str, int, float))}
    told = "  ".join(
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in words.items()
    )
    sys.stderr.write(f"measured: {told}\n")
    sys.stderr.flush()
