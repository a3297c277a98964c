from __future__ import annotations

import pytest

from gradwire.experiments import perform
from gradwire.experiments.papers.inceptionn.figure_15 import EXHIBIT, Options


def rows(**seconds: float) -> list[dict[str, object]]:
    usual = {"WA4": 1.0, "WA6": 1.5, "WA8": 2.0, "INC4": 1.0, "INC6": 1.1, "INC8": 1.2} | seconds
    return [
        {
            "organisation": name[:-1],
            "workers": int(name[-1]),
            "seconds": [each],
            "formula_s": usual.get(f"f{name}", each),
        }
        for name, each in usual.items()
        if name[0] != "f"
    ]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_times() -> None:
    assert failed(rows()) == []
    assert failed(rows(INC8=1.5, fINC8=1.2)) == ["8 workers over 4 with a ring: stays about constant"]
    assert failed(rows(WA6=1.9)) == ["times with an aggregator over those on a straight line"]
    assert "8 workers over 4 with an aggregator: grows" in failed(rows(WA6=1.1, WA8=1.2))


def test_the_formula_is_the_papers() -> None:
    found = perform(EXHIBIT.experiment, Options((2,), 40_000, 1), quiet=True)
    # (1 + 1) 50 us + (2 + 1) 233 MB at 10 Gbit/s + 233 MB at 4 GB/s; 2 x 50 us + 233 MB + half of the sums.
    assert found[0]["formula_s"] == pytest.approx(1e-4 + 3 * 0.1864 + 0.05825)
    assert found[1]["formula_s"] == pytest.approx(1e-4 + 0.1864 + 0.029125)
    assert found[0]["seconds"][0] > 0.032, "twice two workers' 40 kB at 5 MB/s"
