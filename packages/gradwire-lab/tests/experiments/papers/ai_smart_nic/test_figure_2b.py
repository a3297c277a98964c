from __future__ import annotations

import pytest

from gradwire_lab.experiments.experiment import Reporter
from gradwire_lab.experiments.hosts import exchanges
from gradwire_lab.experiments.papers.ai_smart_nic.figure_2b import EXHIBIT, SCHEMES, SmartNicFigure2bOptions


def rows(**seconds: float) -> list[dict[str, object]]:
    usual = {"ring4": 1.5, "ring8": 1.75, "Rabenseifner4": 1.5, "Rabenseifner8": 1.8}
    usual |= {"binomial4": 4.0, "binomial8": 6.0} | seconds
    return [
        {"scheme": name[:-1], "nodes": int(name[-1]), "seconds": [each, each, 2 * each]}
        for name, each in usual.items()
    ]


def failed(found: list[dict[str, object]]) -> list[int]:
    return [number for number, claim in enumerate(EXHIBIT.claims(found)) if not claim.is_met]


def test_verdicts_follow_from_the_times() -> None:
    assert failed(rows()) == []
    assert failed(rows(Rabenseifner4=2.0)) == [0]
    assert failed(rows(binomial8=2.0)) == [1]
    assert failed(rows(ring8=2.1, Rabenseifner8=2.1)) == [2]


def test_rows_in_another_order_have_the_same_verdicts() -> None:
    assert failed(rows(ring8=2.1, Rabenseifner8=2.1)[::-1]) == [2]


def test_one_lucky_exchange_turns_nothing() -> None:
    slow = rows(Rabenseifner4=2.0)
    place = next(row for row in slow if (row["scheme"], row["nodes"]) == ("Rabenseifner", 4))
    place["seconds"] = [1.5, 2.0, 2.0]
    assert failed(slow) == [0]


def test_all_schemes_are_exchanged_in_each_network() -> None:
    cells = EXHIBIT.experiment.cells(SmartNicFigure2bOptions((2, 4), 40_000, 1))
    assert [(cell["hosts"], cell["scheme"]) for cell in cells] == [
        (hosts, scheme) for hosts in (2, 4) for scheme in SCHEMES
    ]
    assert {cell["algorithm"] for cell in cells} == {"ring", "butterfly", "tree"}


def test_a_scheme_that_is_removed_is_missed() -> None:
    with pytest.raises(LookupError):
        EXHIBIT.claims([row for row in rows() if row["scheme"] != "binomial"])


def test_hosts_exchange_what_cells_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(exchanges, "measure_cells", lambda *words: asked.extend(words))
    cells = EXHIBIT.experiment.cells(EXHIBIT.quick)
    EXHIBIT.experiment.run(EXHIBIT.quick, cells, (), Reporter(asked.append, asked.append))
    assert asked[:2] == [exchanges.__name__, cells]
    assert asked[3] == {"most": 3, "budget_s": 30.0, "line_nbytes": None}
