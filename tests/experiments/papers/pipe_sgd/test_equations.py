from __future__ import annotations

import pytest

from gradwire.experiments.papers.pipe_sgd.equations import EXHIBIT, PIPELINES, SHARES, Options


def rows(**changed: float) -> list[dict[str, object]]:
    """Steps as the equations say, with an exchange of 1 s; others by kind and pipeline."""
    found = []
    for kind, compute_s in SHARES.items():
        for pipeline in PIPELINES:
            step_s = compute_s + 1 if pipeline == 1 else max(compute_s, 1.0)
            name = f"{kind.split()[0]}{pipeline}"
            times = [changed.get(name, step_s)]
            found.append(
                {
                    "kind": kind,
                    "pipeline": pipeline,
                    "compute_s": compute_s,
                    "communicate_s": 1.0,
                    "steps_s": times,
                }
            )
    return found


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_steps() -> None:
    assert failed(rows()) == []
    assert failed(rows(balanced1=1.2)) == ["synchronous step over equation 2"]
    assert failed(rows(balanced3=0.5)) == ["K = 2 is the best of 1 to 4: its step over the shortest"]
    text = [
        "pipelined step (K = 2) over equation 4",
        "K = 2 is the best of 1 to 4: its step over the shortest",
    ]
    assert failed(rows(line2=1.4))[:2] == text
    assert len(failed(rows(line2=1.4))) == 3, "and the scaling efficiency"


def test_steps_hide_the_exchange_behind_the_computation() -> None:
    options = Options(20_000, 3)
    cells = [cell for cell in EXHIBIT.experiment.cells(options) if cell["kind"] == "balanced"]
    assert len(cells) == 4
    found: list[dict[str, object]] = []
    EXHIBIT.experiment.run(options, cells[:2], (), found.append)  # type: ignore[arg-type]
    # A ring of four moves 1.5 times 80 kB at 5 MB/s in six messages of 1 ms.
    assert found[0]["communicate_s"] == pytest.approx(0.03)
    assert all(len(row["steps_s"]) == 3 for row in found)  # type: ignore[arg-type]
    assert min(found[0]["steps_s"]) > 0.059, "both, one after the other"  # type: ignore[call-overload]
    assert min(found[1]["steps_s"]) > 0.029  # type: ignore[call-overload]
