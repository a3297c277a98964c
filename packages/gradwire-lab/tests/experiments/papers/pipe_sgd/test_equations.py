from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.pipe_sgd.equations import EXHIBIT, PIPELINES
from gradwire_lab.experiments.papers.pipe_sgd.ways import LINE, MODEL, PLAIN, TIME, TRAIN

RATIOS, NBYTES = (0.3, 1.0, 3.0), 4_000_000


def rows(accuracies: dict[int, float] | None = None, **changed: float) -> list[dict[str, Any]]:
    """Steps as the equations say, with computation of 1 s; other steps by ratio and K: ``at_3_K2``."""
    ends = {3: 0.944, 4: 0.935} | (accuracies or {})
    found: list[dict[str, Any]] = [{"kind": PLAIN, "steps_s": [1.0], "nbytes": NBYTES}]
    for ratio in RATIOS:
        found.append({"kind": LINE, "ratio": ratio, "codec": "identity", "exchange_s": [ratio]})
        # Two workers: 2 alpha + n beta + n / 2 gamma + S.
        line = {"alpha_s": 0.05, "gamma_s_per_nbyte": 0.1 / NBYTES, "synchronisation_s": 0.05}
        beta = (ratio - 0.2) / NBYTES * changed.get("beta", 1.0)
        found.append({"kind": MODEL, "ratio": ratio, "beta_s_per_nbyte": beta, **line})
        for pipeline in PIPELINES:
            step_s = 1 + ratio if pipeline == 1 else max(1.0, ratio)
            times = [changed.get(f"at_{ratio:g}_K{pipeline}", step_s)]
            found.append({"kind": TIME, "ratio": ratio, "run": f"K = {pipeline}", "steps_s": times})
    found += [
        {"kind": TRAIN, "run": f"K = {pipeline}", "seed": seed, "accuracy": ends.get(pipeline, 0.95)}
        for pipeline in PIPELINES
        for seed in (0, 1, 2)
    ]
    return [{"data": "mnist", **row} for row in found]


def verdicts(found: list[dict[str, Any]], *which: Verdict) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if claim.verdict in which]


def failed(found: list[dict[str, Any]]) -> list[str]:
    return verdicts(found, Verdict.NOT_REPRODUCED, Verdict.DID_NOT_LEARN)


def test_verdicts_follow_from_the_steps() -> None:
    assert failed(rows()) == []
    assert failed(rows(at_1_K1=1.5)) == ["a synchronous step over equation 2"]
    assert failed(rows(at_1_K3=0.5)) == ["a step with K = 2 over one with K = 3"]
    slow = ["a step with K = 2 over equation 4", "a step with K = 2 over equation 5"]
    worse = [f"a step with K = 2 over one with K = {pipeline}" for pipeline in (3, 4)]
    assert failed(rows(at_3_K2=4.0)) == [*slow, *worse, "scaling efficiency over equation 7"]
    assert failed(rows(at_1_K2=0.5))[:2] == slow, "too fast is another equation, too"


def test_equation_5_is_that_of_alpha_beta_gamma_and_s() -> None:
    assert failed(rows(beta=2.0)) == ["a step with K = 2 over equation 5"]


def test_what_cannot_be_run_says_why() -> None:
    left = {claim.text: claim.not_run for claim in EXHIBIT.claims(rows()) if claim.not_run}
    assert [*left] == ["a step over equation 3", "a step over equation 6"]
    assert "handed over when the whole backward pass has ended" in left["a step over equation 6"]


def test_a_depth_that_did_not_learn_has_no_speed() -> None:
    dead = verdicts(rows({4: 0.1}), Verdict.DID_NOT_LEARN)
    assert dead == ["a step with K = 2 over one with K = 4"]
    assert failed(rows({2: 0.943, 3: 0.937})) == ["accuracy lost by K = 2"]
    assert failed(rows({3: 0.90})) == ["a step with K = 2 over one with K = 3"]
    harmless = failed(rows({3: 0.949, 4: 0.95}))
    assert harmless == [f"accuracy that K = {more} loses beyond K = 2: only harms" for more in (3, 4)]
    everything = [row | ({"accuracy": 0.1} if "accuracy" in row else {}) for row in rows()]
    assert set(verdicts(everything, *Verdict)) - set(verdicts(everything, Verdict.DID_NOT_LEARN)) == {
        "a step over equation 3",
        "a step over equation 6",
    }


def test_each_depth_is_timed_on_each_line_and_trained() -> None:
    cells = EXHIBIT.experiment.cells(EXHIBIT.full)
    timed = [(cell["ratio"], cell["run"]) for cell in cells if cell["kind"] == TIME]
    assert timed == [(ratio, f"K = {pipeline}") for ratio in RATIOS for pipeline in PIPELINES]
    assert len([cell for cell in cells if cell["kind"] == TRAIN]) == 3 * len(PIPELINES)
    left = [row for row in rows() if row.get("run") != "K = 1"]
    with pytest.raises((LookupError, ValueError)):
        EXHIBIT.claims(left)
