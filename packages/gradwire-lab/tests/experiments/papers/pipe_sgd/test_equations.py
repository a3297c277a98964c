from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.pipe_sgd.equations import EXHIBIT, PIPELINES
from gradwire_lab.experiments.papers.pipe_sgd.ways import IN_SEGMENTS, LINE, MODEL, PLAIN, TIME, TRAIN

RATIOS, NBYTES = (0.3, 1.0, 3.0), 4_000_000


def rows(accuracies: dict[int, float] | None = None, **changed: float) -> list[dict[str, Any]]:
    """Steps as the equations say, with computation of 1 s; other steps by ratio and K: ``at_3_K2``.

    Half of the backward pass is after the first of three segments, 0.3 s; ``at_3_segments`` is their step.
    """
    ends = {3: 0.944, 4: 0.935} | (accuracies or {})
    plain = {"steps_s": [1.0], "nbytes": NBYTES, "rest_s": changed.get("rest", 0.3)}
    found: list[dict[str, Any]] = [{"kind": PLAIN, **plain}]
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
        # Each segment beyond the first takes another 2 alpha + S.
        times = [changed.get(f"at_{ratio:g}_segments", max(1.0, ratio + 2 * 0.15))]
        found.append({"kind": TIME, "ratio": ratio, "run": IN_SEGMENTS, "steps_s": times, "segments": 3})
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
    assert failed(rows(at_1_K3=0.5)) == ["a step with K = 2 over a step with K = 3"]
    slow = ["a step with K = 2 over equation 4", "a step with K = 2 over equation 5"]
    worse = [f"a step with K = 2 over a step with K = {pipeline}" for pipeline in (3, 4)]
    cheap = "a step with segments over a step without"
    assert failed(rows(at_3_K2=4.0)) == [*slow, cheap, *worse, "scaling efficiency over equation 7"]
    assert failed(rows(at_1_K2=0.5))[:2] == slow, "too fast is another equation, too"


def test_equation_5_is_that_of_alpha_beta_gamma_and_s() -> None:
    assert failed(rows(beta=2.0))[:1] == ["a step with K = 2 over equation 5"]


SIX = "a step over equation 6"


def test_equation_6_adds_latencies_and_synchronisations() -> None:
    assert verdicts(rows(rest=0.0), Verdict.EXPLAINED) == []
    assert failed(rows(rest=0.0, at_3_segments=5.0)) == [SIX, f"{SIX} with the whole backward pass"]
    assert failed(rows(at_1_segments=1.0)) == [SIX, f"{SIX} with the whole backward pass"], "no latencies"
    assert failed(rows(beta=2.0))[1:] == [SIX, f"{SIX} with the whole backward pass"]
    quick = failed(rows(None, **{"at_0.3_segments": 0.7}))
    assert quick == [f"{SIX} with the whole backward pass", "a step with segments over a step without"]


def test_a_step_with_the_whole_backward_pass_is_explained() -> None:
    assert verdicts(rows(), Verdict.EXPLAINED) == [SIX]
    assert failed(rows(None, **{"at_0.3_segments": 1.8})) == [SIX, f"{SIX} with the whole backward pass"]


def test_what_cannot_be_run_says_why() -> None:
    left = [claim.text for claim in EXHIBIT.claims(rows()) if claim.not_run]
    assert left == ["a step over equation 3"]


def test_a_record_without_segments_still_has_its_other_claims() -> None:
    older = [row | {"rest_s": None} for row in rows() if row.get("run") != IN_SEGMENTS]
    found = {claim.text: claim for claim in EXHIBIT.claims(older)}
    assert [*found] == [claim.text for claim in EXHIBIT.claims(rows())]
    left = [text for text, claim in found.items() if claim.not_run]
    assert left == [
        "a step over equation 3",
        SIX,
        f"{SIX} with the whole backward pass",
        "a step with segments over a step without",
    ]
    assert failed(older) == []


def test_a_depth_that_did_not_learn_has_no_speed() -> None:
    dead = verdicts(rows({4: 0.1}), Verdict.DID_NOT_LEARN)
    assert dead == ["a step with K = 2 over a step with K = 4"]
    assert failed(rows({2: 0.943, 3: 0.937})) == ["accuracy lost by K = 2"]
    assert failed(rows({3: 0.90})) == ["a step with K = 2 over a step with K = 3"]
    harmless = failed(rows({3: 0.949, 4: 0.95}))
    assert harmless == [f"accuracy that K = {more} loses beyond K = 2: only harms" for more in (3, 4)]
    everything = [row | ({"accuracy": 0.1} if "accuracy" in row else {}) for row in rows()]
    assert set(verdicts(everything, *Verdict)) - set(verdicts(everything, Verdict.DID_NOT_LEARN)) == {
        "a step over equation 3",
    }


def test_each_depth_is_timed_on_each_line_and_trained() -> None:
    cells = EXHIBIT.experiment.cells(EXHIBIT.full)
    timed = [(cell["ratio"], cell["run"]) for cell in cells if cell["kind"] == TIME]
    runs = [*(f"K = {pipeline}" for pipeline in PIPELINES), IN_SEGMENTS]
    assert timed == [(ratio, run) for ratio in RATIOS for run in runs]
    assert len([cell for cell in cells if cell["kind"] == TRAIN]) == 3 * len(PIPELINES)
    left = [row for row in rows() if row.get("run") != "K = 1"]
    with pytest.raises((LookupError, ValueError)):
        EXHIBIT.claims(left)
