from __future__ import annotations

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.inceptionn.table_2 import EXHIBIT


def test_sums_and_the_model_are_judged_and_altered_ones_fail() -> None:
    rows = [dict(row) for row in perform(EXHIBIT.experiment, EXHIBIT.quick, quiet=True)]
    verdicts = {claim.text: claim.verdict for claim in EXHIBIT.claims(rows)}
    assert verdicts.pop("VGG-16: sum of the steps' times") is Verdict.EXPLAINED
    # 525 MB at AlexNet's rate: 148.71 x 525 / 233 = 335 s, and 583.58 s are published.
    assert verdicts.pop("VGG-16: communication, at AlexNet's rate") is Verdict.NOT_REPRODUCED
    # A rate from AlexNet's row of this table is no prediction of its other rows.
    calibrated = {text for text, verdict in verdicts.items() if verdict is Verdict.CALIBRATED}
    assert calibrated == {f"{name}: communication, at AlexNet's rate" for name in ("HDC", "ResNet-50")}
    assert {verdicts[text] for text in verdicts.keys() - calibrated} == {Verdict.ARITHMETIC}
    altered = [row | {"total_s": row["total_s"] + 3.0} for row in rows]
    by_text = {claim.text: claim.verdict for claim in EXHIBIT.claims(altered)}
    assert by_text["AlexNet: sum of the steps' times"] is Verdict.NOT_REPRODUCED
    assert by_text["VGG-16: sum of the steps' times"] is Verdict.ARITHMETIC
