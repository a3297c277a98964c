from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.ai_smart_nic.model import FIGURES, MODEL


def test_published_figures_are_the_models_or_explained_and_altered_ones_fail() -> None:
    rows = [dict(row) for row in perform(FIGURES.experiment, FIGURES.quick, quiet=True)]
    claims = FIGURES.claims(rows)
    assert [claim.verdict for claim in claims].count(Verdict.MODELLED) == len(claims) - 1 - 5
    assert [claim.verdict for claim in claims].count(Verdict.CALIBRATED) == 5
    (explained,) = (claim for claim in claims if claim.verdict is Verdict.EXPLAINED)
    assert explained.text.startswith("overlapped, batch 1792: exposed time")
    speedups = [claim for claim in claims if claim.unit == "x" and "NIC" in claim.text]
    assert all(claim.published and "40 Gbit/s" in claim.published.erratum for claim in speedups)
    altered = [row | {"model": 1.2 * row["model"]} if row["part"] == "figure" else row for row in rows]
    assert not any(claim.is_met for claim in FIGURES.claims(altered))
    hidden = [row | {"model": 5.0} if row["part"] == "figure" else row for row in rows]
    assert {claim.verdict for claim in FIGURES.claims(hidden)} == {Verdict.NOT_REPRODUCED}


def test_rings_and_steps_that_are_not_as_modelled_fail() -> None:
    def ring(cycles: float) -> list[dict[str, object]]:
        return [{"part": "ring", "model_cycles": 1000.0, "cycles": cycles}]

    assert [claim.verdict for claim in MODEL.claims(ring(1005))] == [Verdict.REPRODUCED]
    assert [claim.verdict for claim in MODEL.claims(ring(1050))] == [Verdict.NOT_REPRODUCED]
