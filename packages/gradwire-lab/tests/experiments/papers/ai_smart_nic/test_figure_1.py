from __future__ import annotations

import pytest

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.hosts import exchanges
from gradwire_lab.experiments.hosts.exchanges import ExchangeOptions
from gradwire_lab.experiments.papers.ai_smart_nic.figure_1 import EXHIBIT
from support.fake_hosts import fake_exchanges


def row(**changed: float) -> list[dict[str, object]]:
    # 6 steps of 0.1 ms and of 1 MB / 4 at 5 MB/s.
    usual = {
        "workers": 4,
        "nbytes": 1_000_000,
        "line_latency_s": 1e-4,
        "line_nbytes_per_s": 5e6,
        "steps": 6,
        "adding": 3,
        "receivers": 1,
        "senders": 1,
        "share_of_a_step": 0.25,
        "complete": 1.0,
    }
    seconds = [changed.pop("seconds", 0.31)]
    return [{**usual, "seconds": seconds, **changed}]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_steps_and_the_times() -> None:
    assert failed(row()) == []
    assert failed(row(steps=7)) == [
        "time steps of four workers",
        "later steps, which store the received chunk",
    ]
    assert len(failed(row(adding=4))) == 2
    for name, figure in (("receivers", 2), ("senders", 2), ("share_of_a_step", 0.5), ("complete", 0.9)):
        assert len(failed(row(**{name: figure}))) == 1
    (optimal,) = failed(row(seconds=0.4))
    assert optimal.endswith("on the hosts' link: bandwidth optimal")
    assert failed(row(seconds=0.2)) == failed(row(line_nbytes_per_s=1e7)) == [optimal]


def test_the_ring_is_followed_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_exchanges(monkeypatch, exchanges)
    found = perform(EXHIBIT.experiment, ExchangeOptions((3, 4), 1600, 40_000, 2), quiet=True)
    assert asked == {"most": 2, "budget_s": 20.0, "line_nbytes": 1 << 20}
    assert [(row["ranks"], row["hosts"], row["rate"]) for row in found] == [
        (3, 4, "400mbit"),
        (4, 4, "400mbit"),
    ]
    assert [(row["steps"], row["adding"], row["complete"]) for row in found] == [(4, 2, 1.0), (6, 3, 1.0)]
    assert found[1]["share_of_a_step"] == pytest.approx(0.25)
    assert found[1]["seconds"] == [1.0]
