from __future__ import annotations

from dataclasses import replace

from gradwire.autotune.estimate import Estimate, deployments, gain, report, table
from gradwire.tables import lines
from gradwire.timing.line import Line
from support.observations import estimator, observed

NETWORKS = [("100mbit", Line(5e-5, 12.5e6)), ("unlimited", Line(5e-5, float("inf")))]


def test_every_row_fits_a_terminal_and_says_what_limits() -> None:
    where = deployments(observed(), NETWORKS, [2, 256], shared_machine=False)
    shown = lines(*report(observed(), [estimator(observed()).at(each) for each in where]))
    assert max(map(len, shown)) <= 80
    rows = [line.split() for line in shown]
    assert ["this", "one", "4"] in [row[:3] for row in rows]
    assert any(row[:2] == ["100mbit", "256"] and "line" in row for row in rows)
    assert any("gain:" in line for line in shown)


def test_the_observation_is_a_sentence() -> None:
    assert str(observed()) == (
        "DDP on 4 ranks, 1 of them on this machine, 10 steps: 55ms per step, with 30ms of computation and "
        "25ms of waiting. 16.78MB of gradients in 4 buckets; slowest link: 10gbit, 10us."
    )
    assert str(observed(line=None, counts=(4,))).endswith("16B of gradients in 1 bucket.")


def test_what_is_known_is_predicted_too() -> None:
    shown = " ".join(lines(*report(observed(), [_here()], 0.0605)))
    assert "The model that predicts the steps below predicts 60.5ms (+10 %) for this step." in shown


def _here() -> Estimate:
    return estimator(observed()).at(deployments(observed(), [], [], shared_machine=False)[0])


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
