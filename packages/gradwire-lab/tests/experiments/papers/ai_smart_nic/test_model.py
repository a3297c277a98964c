from __future__ import annotations

import pytest

from gradwire_lab.experiments import perform, smart_nic
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.experiment import select
from gradwire_lab.experiments.papers.ai_smart_nic.model import FIGURES, MODEL, RINGS
from gradwire_lab.experiments.smart_nic.options import CALIBRATION, STEP


def test_published_figures_hold_by_construction_or_are_predicted_and_altered_ones_fail() -> None:
    rows = [dict(row) for row in perform(FIGURES.experiment, FIGURES.quick, quiet=True)]
    claims = FIGURES.claims(rows)
    verdicts = [claim.verdict for claim in claims]
    assert verdicts.count(Verdict.CALIBRATED) == 7
    assert verdicts.count(Verdict.ARITHMETIC) == 2
    failed = [claim.text for claim in claims if claim.verdict is Verdict.NOT_REPRODUCED]
    assert len(failed) == len(claims) - 9 == 4
    assert [text for text in failed if "32 nodes" in text] == failed[1:]
    speedups = [claim for claim in claims if claim.unit == "x" and "32 nodes" in claim.text]
    assert all(claim.published and "40 Gbit/s" in claim.published.erratum for claim in speedups)
    altered = [row | {"model": 2 * row["model"]} if row["part"] == "figure" else row for row in rows]
    assert not any(claim.is_met for claim in FIGURES.claims(altered) if claim.text not in failed)


def test_rings_that_are_not_as_modelled_fail() -> None:
    def ring(cycles: float) -> list[dict[str, object]]:
        return [{"part": "ring", "model_cycles": 1000.0, "cycles": cycles}]

    assert [claim.verdict for claim in RINGS.claims(ring(1005))] == [Verdict.MODELLED]
    assert [claim.verdict for claim in RINGS.claims(ring(1050))] == [Verdict.NOT_REPRODUCED]


@pytest.mark.parametrize("full", [False, True])
def test_the_exhibits_and_the_experiment_are_one(full: bool) -> None:
    assert {each.experiment for each in (FIGURES, RINGS, MODEL)} == {smart_nic.EXPERIMENT}
    cells = MODEL.experiment.cells(MODEL.options(full))
    assert len(select(cells, part=CALIBRATION)) == 1
    assert {cell["seeds"] for cell in select(cells, part=STEP)} == {3 if full else 1}
