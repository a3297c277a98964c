"""The papers' tables and figures: published claims, the runs that measure their counterparts, and verdicts.

``gradwire reproduce`` and ``reproduce`` run ``EXHIBITS``.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from gradwire.errors import SpecError
from gradwire_lab.experiments.experiment import Catalogue
from gradwire_lab.experiments.papers import ai_smart_nic, inceptionn, pipe_sgd, study
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
"""Each paper's name and title."""

_PLACES: Mapping[str, Mapping[str, str]] = {
    "study": study.EXHIBITS,
    "inceptionn": inceptionn.EXHIBITS,
    "pipe-sgd": pipe_sgd.EXHIBITS,
    "a2dtwp": {"a2dtwp-section-v": "a2dtwp:EXHIBIT"},
    "smart-nic": ai_smart_nic.EXHIBITS,
}
BY_NAME = Catalogue[Exhibit[Any]](
    {name: f"{__name__}.{place}" for places in _PLACES.values() for name, place in places.items()}
)
"""The exhibits by name."""
EXHIBITS: Collection[Exhibit[Any]] = BY_NAME.values()
"""All exhibits, in the order of the printed tables; a module is imported when its exhibit is used."""


def chosen(name: str | None) -> list[Exhibit[Any]]:
    """Return a paper's exhibits, the exhibit of this name, or all exhibits for None. Raises ``SpecError``."""
    names = [each for paper, places in _PLACES.items() for each in places if name in (None, paper, each)]
    if not names:
        raise SpecError(
            f"expected a paper ({', '.join(PAPERS)}) or a name from gradwire reproduce --list, got {name!r}; "
            "omit the name to run all exhibits"
        )
    return [BY_NAME[each] for each in names]


__all__ = [
    "BY_NAME",
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
