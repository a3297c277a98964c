from __future__ import annotations

import math

import pytest
import torch

from gradwire import Plan
from gradwire.autotune.contract import Contract, RelativeErrors, is_leaner
from gradwire.autotune.costs import at_once
from gradwire.autotune.samples import Samples
from gradwire.codecs import parse

FINE, COARSE, BOTH = (parse(each) for each in ("ecsq:0.25", "ecsq:0.5", "ecsq:0.5,sum=0.25"))


def sampled(seed: int) -> Samples:
    samples = Samples()
    index = samples.expect([(40, 50), (500,)], ["weight", "bias"])
    samples.store(index, torch.randn(2500, generator=torch.Generator().manual_seed(seed)))
    return samples


def test_each_encoding_is_measured_once_and_the_worst_rank_counts() -> None:
    contract, both = Contract(0.2, 4, {"bias": 0.5}), [sampled(1), sampled(2)]
    rows = [contract.own_errors(each, [FINE, BOTH]) for each in both]
    assert [len(row) for row in rows] == [4, 4], "of two parameters, with the steps 0.25 and 0.5"
    algorithms, present = ["ring", "pairwise"], Plan.of("ecsq:0.25")
    found = at_once(contract.errors(rows, both[0], [FINE, BOTH], algorithms, present))
    assert list(found["ring"].shares) == [FINE], "a step for sums suits no ring"
    once = [max(row[0] for row in rows), max(row[2] for row in rows)]
    assert math.isclose(found["ring"].shares[FINE]["weight"], once[0] * math.sqrt(10 / 4))
    of_both = found["pairwise"].shares[BOTH]["weight"]
    assert math.isclose(of_both, math.sqrt(3 / 4 * once[1] ** 2 + once[0] ** 2))
    assert found["pairwise"].shares[FINE]["bias"] == 0.5, "as it was seen"
    assert found["pairwise"].counts == {"weight": 2000, "bias": 500}


@pytest.mark.parametrize(
    ("share", "of_bias", "nbytes", "is_so"),
    [
        (0.14, 0.14, 0.39, True),
        (0.16, 0.14, 0.39, False),  # more than three quarters of 0.2
        (0.14, 0.14, 0.41, False),  # more than four fifths of 0.5
        (0.14, 1.0, 0.35, False),  # a tenth is not compressed: 0.315 + 0.4
        (0.14, 1.0, 0.0, False),
    ],
)
def test_a_leaner_codec_has_room_to_spare_and_sends_far_less(
    share: float, of_bias: float, nbytes: float, *, is_so: bool
) -> None:
    counts = {"weight": 900, "bias": 100}
    shares = {COARSE: {"weight": share, "bias": of_bias}, FINE: {"weight": 0.1, "bias": 0.1}}
    lost = RelativeErrors(counts, shares, {FINE: 0.5, COARSE: nbytes}, 0.2)
    present = Plan.of("ecsq:0.25")
    assert is_leaner(lost, present, [COARSE]) is is_so
    assert not is_leaner(lost, present, []), "nothing was left out"
