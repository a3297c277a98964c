"""The papers' tables and figures: published claims, the runs that measure their counterparts, and verdicts.

``gradwire reproduce`` and ``reproduce`` run ``EXHIBITS``.
"""

from types import MappingProxyType
from typing import Any

from gradwire.errors import SpecError
from gradwire_lab.experiments.papers import a2dtwp, ai_smart_nic, inceptionn, pipe_sgd, study
from gradwire_lab.experiments.papers.exhibit import Exhibit
from gradwire_lab.experiments.papers.reproduce import Judged, failures, report, reproduce, seconds_in_words

PAPERS = MappingProxyType(
    {
        "study": "Iandola and others, distributed DNN training: a measurement study",
        "inceptionn": "Li and others, INCEPTIONN (MICRO 2018)",
        "pipe-sgd": "Li and others, Pipe-SGD (NeurIPS 2018)",
        "a2dtwp": "Zhuang and others, reducing data motion (A2DTWP)",
        "smart-nic": "Ma and others, FPGA-based AI smart NICs (arXiv 2204.10943)",
    }
)
"""Name -> what the paper is."""

EXHIBITS: tuple[Exhibit[Any], ...] = (
    *study.EXHIBITS,
    *inceptionn.EXHIBITS,
    *pipe_sgd.EXHIBITS,
    *a2dtwp.EXHIBITS,
    *ai_smart_nic.EXHIBITS,
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


__all__ = [
    "EXHIBITS",
    "PAPERS",
    "Exhibit",
    "Judged",
    "chosen",
    "failures",
    "report",
    "reproduce",
    "seconds_in_words",
]
