"""The papers' tables and figures: published claims, the runs that measure their counterparts, and verdicts.

``gradwire reproduce`` and ``reproduce`` run ``EXHIBITS``.
"""

from collections.abc import Collection, Mapping
from typing import Any

from gradwire.errors import SpecError
from gradwire_lab.experiments.experiment import Catalogue
from gradwire_lab.experiments.papers.exhibit import Exhibit

PAPERS = {
    "study": "Iandola and others, distributed DNN training: a measurement study",
    "inceptionn": "Li and others, INCEPTIONN (MICRO 2018)",
    "pipe-sgd": "Li and others, Pipe-SGD (NeurIPS 2018)",
    "a2dtwp": "Zhuang and others, reducing data motion (A2DTWP)",
    "smart-nic": "Ma and others, FPGA-based AI smart NICs (arXiv 2204.10943)",
}

_PLACES: Mapping[str, Mapping[str, str]] = {
    "study": {
        "study-table-1": "study.table_1:EXHIBIT",
        "study-equations-1-to-4": "study.formulas:EXHIBIT",
        "study-figure-7": "study.figure_7:EXHIBIT",
        "study-figure-8": "study.figure_8:EXHIBIT",
        "study-section-1-firecaffe": "study.firecaffe:EXHIBIT",
    },
    "inceptionn": {
        "inceptionn-figure-1": "inceptionn.figure_1:EXHIBIT",
        "inceptionn-figure-3": "inceptionn.figure_3:EXHIBIT",
        "inceptionn-table-ii": "inceptionn.table_2:EXHIBIT",
        "inceptionn-table-iii": "inceptionn.table_3:EXHIBIT",
        "inceptionn-figure-4": "inceptionn.figure_4:EXHIBIT",
        "inceptionn-figure-5": "inceptionn.figure_5:EXHIBIT",
        "inceptionn-figure-7": "inceptionn.figure_7:EXHIBIT",
        "inceptionn-figure-12": "inceptionn.figure_12:EXHIBIT",
        "inceptionn-figure-13": "inceptionn.figure_13:EXHIBIT",
        "inceptionn-figure-14": "inceptionn.figure_14:EXHIBIT",
        "inceptionn-figure-15": "inceptionn.figure_15:EXHIBIT",
    },
    "pipe-sgd": {
        "pipe-sgd-equations-2-to-7": "pipe_sgd.equations:EXHIBIT",
        "pipe-sgd-figure-4": "pipe_sgd.figure_4:EXHIBIT",
        "pipe-sgd-figure-4-imagenet": "pipe_sgd.imagenet:EXHIBIT",
        "pipe-sgd-figure-4-cifar100-convex": "pipe_sgd.cifar_convex:EXHIBIT",
        "pipe-sgd-section-3-3-convex": "pipe_sgd.convex:EXHIBIT",
        "pipe-sgd-section-3-3-strongly-convex": "pipe_sgd.strongly_convex:EXHIBIT",
        "pipe-sgd-section-3-2-terngrad": "pipe_sgd.terngrad:EXHIBIT",
    },
    "a2dtwp": {"a2dtwp-section-v": "a2dtwp:EXHIBIT"},
    "smart-nic": {
        "smart-nic-figure-1": "ai_smart_nic.figure_1:EXHIBIT",
        "smart-nic-figures-2-and-4": "ai_smart_nic.model:FIGURES",
        "smart-nic-figure-2b": "ai_smart_nic.figure_2b:EXHIBIT",
        "smart-nic-figure-3b": "ai_smart_nic.figure_3:EXHIBIT",
        "smart-nic-table-i": "ai_smart_nic.table_1:EXHIBIT",
        "smart-nic-section-iv-c": "ai_smart_nic.model:RINGS",
        "smart-nic-section-v-b": "ai_smart_nic.model:MODEL",
    },
}
"""Each paper's exhibits and their modules, by name, in the order of the printed tables."""
BY_NAME = Catalogue[Exhibit[Any]](
    {name: f"{__name__}.{place}" for places in _PLACES.values() for name, place in places.items()}
)
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
