"""The colours of curves and bars in every plot, and what the page's themes make of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
