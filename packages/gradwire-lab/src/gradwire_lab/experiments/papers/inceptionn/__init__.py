"""INCEPTIONN's tables and figures: gradients, what compression does to them, and what exchanges cost."""

from typing import Any

from gradwire_lab.experiments.papers.exhibit import Exhibit
from gradwire_lab.experiments.papers.inceptionn import (
    figure_1,
    figure_3,
    figure_4,
    figure_5,
    figure_7,
    figure_12,
    figure_13,
    figure_14,
    figure_15,
    table_2,
    table_3,
)

EXHIBITS: tuple[Exhibit[Any], ...] = tuple(
    module.EXHIBIT
    for module in (
        figure_1,
        figure_3,
        table_2,
        table_3,
        figure_4,
        figure_5,
        figure_7,
        figure_12,
        figure_13,
        figure_14,
        figure_15,
    )
)
