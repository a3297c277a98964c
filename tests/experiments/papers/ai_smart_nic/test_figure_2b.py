from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.papers.ai_smart_nic.figure_2b import EXHIBIT, SCHEMES, Options


def rows(**seconds: float) -> list[dict[str, object]]:
    usual = {"ring4": 1.5, "ring8": 1.75, "Rabenseifner4": 1.5, "Rabenseifner8": 1.8}
    usual |= {"binomial4": 4.0, "binomial8": 6.0} | seconds
    return [
        {"scheme": name[:-1], "nodes": int(name[-1]), "seconds": [each, 2 * each]}
        for name, each in usual.items()
    ]


def failed(found: list[dict[str, object]]) -> list[int]:
    return [number for number, claim in enumerate(EXHIBIT.claims(found)) if not claim.is_met]


def test_verdicts_follow_from_the_times() -> None:
    assert failed(rows()) == []
    assert failed(rows(Rabenseifner4=2.0)) == [0]
    assert failed(rows(binomial8=2.0)) == [1]
    assert failed(rows(ring8=2.1, Rabenseifner8=2.1)) == [2]


def test_each_scheme_is_timed() -> None:
    found = perform(EXHIBIT.experiment, Options((4,), 40_000, 1), quiet=True)
    assert [row["scheme"] for row in found] == [*SCHEMES]
    # A tree of four sends the whole bucket up two levels and down again: 4 x 40 kB at 5 MB/s.
    assert found[2]["seconds"][0] >= 0.95 * 4 * 40_000 / 5e6
