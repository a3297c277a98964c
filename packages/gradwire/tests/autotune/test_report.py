from __future__ import annotations

from dataclasses import replace

from gradwire.autotune.estimate import Deployment, Estimate, gain, legend, table
from support.observations import FAST, estimator, observed


def test_the_observation_is_a_sentence() -> None:
    assert str(observed()) == (
        "DDP on 4 ranks, 1 of them on this machine, 10 steps: 55ms per step, with 30ms of computation and "
        "25ms of waiting. 16.78MB of gradients in 4 buckets; slowest link: 10gbit, 10us."
    )
    assert str(observed(line=None, counts=(4,))).endswith("16B of gradients in 1 bucket.")


def _here() -> Estimate:
    return estimator(observed()).at(Deployment("this one", FAST, 4, is_here=True))


def test_gains_are_ranges_unless_they_are_noisy() -> None:
    found = replace(_here(), spread=0.1)
    assert gain(found, 1.1) == "1-1.21x"
    assert gain(replace(found, spread=0.0), 1.5) == "1.5x"
    assert gain(replace(found, spread=0.151), 1.5) == "noisy"
    rows = table([replace(found, spread=0.2)]).rows
    assert rows[0][5:7] == ("noisy", "noisy")


def test_long_steps_are_in_seconds() -> None:
    found = _here()
    assert table([found]).columns[2].unit == "ms"
    assert table([replace(found, plain_s=120.0)]).columns[2].unit == "s"


def test_lanes_are_in_the_row_and_explained() -> None:
    found = _here()
    several = replace(found, plan=replace(found.plan, algorithm="ring", lanes=4))
    assert table([several]).rows[0][3] == f"{found.plan.codec} ring L=4"
    assert [" L: lanes" in legend(each) for each in ([found], [found, several])] == [False, True]
