"""The smart NIC: its ring, the steps with the all-reduce in the NIC, and the resources that it takes."""

from typing import Any

from gradwire_lab.experiments.papers.ai_smart_nic import figure_1, figure_2b, figure_3, model, table_1
from gradwire_lab.experiments.papers.exhibit import Exhibit

EXHIBITS: tuple[Exhibit[Any], ...] = (
    figure_1.EXHIBIT,
    model.FIGURES,
    figure_2b.EXHIBIT,
    figure_3.EXHIBIT,
    table_1.EXHIBIT,
    model.RINGS,
    model.MODEL,
)
