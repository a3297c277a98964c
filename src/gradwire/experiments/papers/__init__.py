"""The papers' tables and figures: published claims, the runs that measure their counterparts, and verdicts.

``gradwire reproduce`` and ``reproduce`` run ``EXHIBITS``.
"""

from types import MappingProxyType
from typing import Any

from gradwire.errors import SpecError
from gradwire.experiments.papers import a2dtwp, smart_nic
from gradwire.experiments.papers.exhibit import Exhibit
from gradwire.experiments.papers.report import report
from gradwire.experiments.papers.reproduce import Judged, reproduce
from gradwire.experiments.papers.study import (
    figure_7,
    figure_8,
    firecaffe,
    formulas,
    table_1,
)

PAPERS = MappingProxyType(
    {
        "study": "Iandola and others, distributed DNN training: a measurement study",
        "a2dtwp": "Zhuang and others, reducing data motion (A2DTWP)",
        "smart-nic": "Ma and others, FPGA-based AI smart NICs (arXiv 2204.10943)",
    }
)
"""Name -> what the paper is."""

EXHIBITS: tuple[Exhibit[Any], ...] = (
    table_1.EXHIBIT,
    formulas.EXHIBIT,
    figure_7.EXHIBIT,
    figure_8.EXHIBIT,
    firecaffe.EXHIBIT,
    a2dtwp.EXHIBIT,
    smart_nic.FIGURES,
    smart_nic.MODEL,
)
"""In the order of the tables that are printed."""


def chosen(name: str | None) -> list[Exhibit[Any]]:
    """Return the exhibits of a paper, the one with this name, or all for None. Raises ``SpecError``."""
    found = [each for each in EXHIBITS if name in (None, each.paper, each.name)]
    if not found:
        raise SpecError(
            f"name a paper ({', '.join(PAPERS)}) or one of gradwire reproduce --list, but {name!r} came"
        )
    return found


__all__ = ["EXHIBITS", "PAPERS", "Exhibit", "Judged", "chosen", "report", "reproduce"]
