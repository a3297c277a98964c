"""The measurement study's tables and figures: what an all-reduce costs, by formula and measured."""

from typing import Any

from gradwire_lab.experiments.papers.exhibit import Exhibit
from gradwire_lab.experiments.papers.study import figure_7, figure_8, firecaffe, formulas, table_1

EXHIBITS: tuple[Exhibit[Any], ...] = tuple(
    module.EXHIBIT for module in (table_1, formulas, figure_7, figure_8, firecaffe)
)
