"""The deployments of a profile, and their estimates as text."""

from __future__ import annotations

from gradwire.profile.run import deployments, report
from gradwire.tables import lines
from gradwire.timing.line import Line
from support.observations import estimator, observed

NETWORKS = [("100mbit", Line(5e-5, 12.5e6)), ("unlimited", Line(5e-5, float("inf")))]


def test_places_begin_where_the_steps_were_observed() -> None:
    other = [("1gbit", NETWORKS[0][1])]
    alone = deployments(observed(), [], [], shared_machine=False)
    assert [(each.network, each.hosts, each.is_here) for each in alone] == [("this one", 4, True)]
    found = deployments(observed(ranks_per_machine=4), other, [2, 8], shared_machine=False)
    assert [(each.network, each.hosts, each.ranks_per_machine) for each in found] == [
        ("this one", 4, 4),
        ("this one", 2, 1),
        ("this one", 8, 1),
        ("1gbit", 2, 1),
        ("1gbit", 8, 1),
    ]
    found = deployments(observed(ranks_per_machine=4), other, [2, 4], shared_machine=False)
    assert [(each.network, each.hosts, each.ranks_per_machine) for each in found] == [
        ("this one", 4, 4),
        ("this one", 2, 1),
        ("1gbit", 2, 1),
        ("1gbit", 4, 1),
    ]
    shared = deployments(observed(line=None), other, [2, 8], shared_machine=True)
    assert [(each.network, each.ranks_per_machine) for each in shared] == [("1gbit", 2), ("1gbit", 8)]


def test_every_row_fits_a_terminal_and_says_what_limits() -> None:
    where = deployments(observed(), NETWORKS, [2, 256], shared_machine=False)
    shown = lines(*report(observed(), [estimator(observed()).at(each) for each in where]))
    assert max(map(len, shown)) <= 80
    rows = [line.split() for line in shown]
    assert ["this", "one", "4"] in [row[:3] for row in rows]
    assert any(row[:2] == ["100mbit", "256"] and "line" in row for row in rows)
    assert any("gain:" in line for line in shown)


def test_what_is_known_is_predicted_too() -> None:
    (here,) = deployments(observed(), [], [], shared_machine=False)
    shown = " ".join(lines(*report(observed(), [estimator(observed()).at(here)], 0.0605)))
    assert (
        "gradwire's cost model, which predicts the steps below, predicts 60.5ms (+10 %) for this step."
        in shown
    )
