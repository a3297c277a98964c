from __future__ import annotations

import pytest

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.inceptionn.figure_3 import EXHIBIT
from gradwire_lab.job.batches import build


def test_weights_are_counted_and_altered_ones_fail() -> None:
    rows = [dict(row) for row in perform(EXHIBIT.experiment, EXHIBIT.quick, quiet=True)]
    # As Caffe's and torchvision's networks have them.
    floats = [60_965_224, 1_149_010, 25_557_032, 138_357_544]
    assert [row["mib"] * 2**18 for row in rows] == pytest.approx(floats, rel=1e-12)
    hdc = build("hdc", (28, 28), 10, 0)
    assert sum(each.numel() for each in hdc.parameters()) == floats[1]
    counted, explained = Verdict.ARITHMETIC, Verdict.EXPLAINED
    verdicts = [claim.verdict for claim in EXHIBIT.claims(rows)]
    assert verdicts == [counted, explained, counted, counted, counted, counted]
    names = ("mib", "three_layers_mib", "communication_share")
    altered = [row | {name: 1.1 * row[name] for name in names if name in row} for row in rows]
    assert {claim.verdict for claim in EXHIBIT.claims(altered)} == {Verdict.NOT_REPRODUCED}
