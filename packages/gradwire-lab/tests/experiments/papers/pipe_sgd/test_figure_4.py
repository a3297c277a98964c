from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.claim import Claim, Verdict
from gradwire_lab.experiments.papers.pipe_sgd.figure_4 import EXHIBIT, RUNS, STALE
from gradwire_lab.experiments.papers.pipe_sgd.ways import CODECS, LINE, PLAIN, TIME, TRAIN, WAYS

PLAIN_S, SHARES = 1.0, {"identity": 1.0, "truncate:16": 0.5, "quantize:8": 0.25}
MOMENTA, RATIOS = (0.0, 0.9), (0.3, 1.0, 3.0)


def rows(accuracies: dict[tuple[str, float], float] | None = None, **slower: float) -> list[dict[str, Any]]:
    """Rows whose steps keep to equations 2 and 4, each times what is given for its run."""
    ends = accuracies or {}
    found: list[dict[str, Any]] = [{"kind": PLAIN, "steps_s": [PLAIN_S]}]
    for ratio in RATIOS:
        found += [
            {"kind": LINE, "ratio": ratio, "codec": codec, "exchange_s": [ratio * share]}
            for codec, share in SHARES.items()
        ]
        for run in RUNS:
            way = WAYS[run]
            exchange_s = ratio * (2.0 if way.has_server else SHARES[way.codec])
            step_s = PLAIN_S + exchange_s if way.pipeline == 1 else max(PLAIN_S, exchange_s)
            found += [
                {
                    "kind": TIME,
                    "ratio": ratio,
                    "run": run,
                    "momentum": momentum,
                    "steps_s": [step_s * slower.get(run, 1.0)],
                }
                for momentum in MOMENTA
            ]
    found += [
        {
            "kind": TRAIN,
            "run": run,
            "momentum": momentum,
            "seed": seed,
            "accuracy": ends.get((run, momentum), 0.95),
        }
        for run in RUNS
        for momentum in MOMENTA
        for seed in (0, 1, 2)
    ]
    return [{"data": "mnist", **row} for row in found]


def claims(found: list[dict[str, Any]]) -> dict[str, Claim]:
    return {claim.title.removesuffix(", on mnist"): claim for claim in EXHIBIT.claims(found)}


def failed(found: list[dict[str, Any]]) -> set[str]:
    return {title for title, claim in claims(found).items() if not claim.is_met and not claim.not_run}


PIPELINES = [
    f"{name}{suffix} over D-Sync{suffix} at momentum {momentum:g}"
    for name in ("Pipe-SGD", "eager Pipe-SGD")
    for suffix in CODECS
    for momentum in MOMENTA
]
OFTEN = {
    f"speed-up of Pipe-SGD with T or Q over {other}, link of ratio {ratio:g} at momentum 0"
    for other in ("D-Sync", "PS-Sync")
    for ratio in RATIOS
}


def test_steps_by_the_equations_fail_only_where_the_published_lines_are_others() -> None:
    # Over PS-Sync it is 1.6, 3, and 7 times on these lines; over D-Sync 1.3, 2, and 4 times.
    assert failed(rows()) == OFTEN - {
        "speed-up of Pipe-SGD with T or Q over D-Sync, link of ratio 1 at momentum 0",
    }


def test_a_line_that_is_another_than_the_paper_s_is_named_as_the_reason() -> None:
    text = "speed-up of Pipe-SGD with T or Q over D-Sync, link of ratio {} at momentum 0"
    found = claims(rows())
    assert found[text.format("0.3")].verdict is Verdict.EXPLAINED
    assert found[text.format("1")].verdict is Verdict.CALIBRATED
    assert found[text.format("3")].verdict is Verdict.EXCEEDED
    assert "the published speed-ups are for 1.0 to 2.2 times" in found[text.format("3")].explained
    for factor in (0.6, 1.2):
        other = claims(rows(None, **{"D-Sync": factor}))
        assert other[text.format("0.3")].verdict is Verdict.NOT_REPRODUCED
        assert other[text.format("3")].verdict is not Verdict.EXCEEDED


def test_a_line_that_is_another_than_it_was_set_for_explains_nothing() -> None:
    """Communication takes 0.73 of computation, so that 1.3 times as fast is less than there could be."""
    missed = [
        {**row, "exchange_s": [0.73]} if (row["kind"], row.get("ratio")) == (LINE, 0.3) else row
        for row in rows()
    ]
    claim = claims(missed)["speed-up of Pipe-SGD with T or Q over D-Sync, link of ratio 0.3 at momentum 0"]
    assert claim.mean == pytest.approx(1.3)
    assert claim.verdict is Verdict.NOT_REPRODUCED
    assert "communication over computation on the link set for 0.3 on mnist" in failed(missed)


def test_a_pipeline_is_compared_with_d_sync_for_each_codec_and_momentum() -> None:
    found = claims(rows())
    for pair in PIPELINES:
        claim = found[f"speed-up of {pair}"]
        assert len(claim.figures) == 3
        assert claim.verdict is Verdict.CALIBRATED
    for titles in ("Pipe-SGD+T", "eager Pipe-SGD"):
        hidden = found[
            f"share of the shorter of communication and computation that {titles} hides at momentum 0"
        ]
        assert hidden.mean == pytest.approx(1.0)


@pytest.mark.parametrize("run", ["Pipe-SGD", "eager Pipe-SGD+Q"])
def test_a_pipeline_that_hides_nothing_is_seen(run: str) -> None:
    suffix = run.removeprefix("eager ").removeprefix("Pipe-SGD")
    alone = {
        (row["ratio"], row["momentum"]): row["steps_s"]
        for row in rows()
        if row["kind"] == TIME and row["run"] == f"D-Sync{suffix}"
    }
    found = [
        {**row, "steps_s": alone[row["ratio"], row["momentum"]]}
        if row["kind"] == TIME and row["run"] == run
        else row
        for row in rows()
    ]
    hidden = f"share of the shorter of communication and computation that {run} hides at momentum 0"
    assert hidden in failed(found)
    assert claims(found)[hidden].mean == 0
    slower = failed(rows(None, **{run: 2.5}))
    assert {
        f"speed-up of {run} over D-Sync{suffix} at momentum {momentum:g}" for momentum in MOMENTA
    } < slower


def test_more_hidden_than_there_is_is_no_success() -> None:
    assert (
        "share of the shorter of communication and computation that Pipe-SGD hides at momentum 0"
        in failed(rows(None, **{"Pipe-SGD": 0.5}))
    )


def test_accuracies_within_half_a_point_on_both_sides() -> None:
    for accuracy in (0.94, 0.96):
        found = failed(rows({("Pipe-SGD+T", 0.0): accuracy}))
        assert "accuracy of Pipe-SGD+T, below D-Sync's at momentum 0" in found


def test_the_declared_failure_stays_on_the_page_and_its_speed_counts_for_nothing() -> None:
    dead = {(run, 0.9): 0.1 for run in RUNS if run.startswith("Pipe-SGD")}
    found = claims(rows(dead))
    for suffix in CODECS:
        claim = found[f"accuracy of Pipe-SGD{suffix}, below D-Sync's at momentum 0.9"]
        assert claim.verdict is Verdict.NOT_REPRODUCED
        assert [each.expected_failure for each in claim.rests_on if each.name.startswith("Pipe")] == [STALE]
        speed = found[f"speed-up of Pipe-SGD{suffix} over D-Sync{suffix} at momentum 0.9"]
        assert speed.verdict is Verdict.DECLARED
        assert speed.declared.startswith(f"Pipe-SGD{suffix} ends at 0.100")
    assert Verdict.DID_NOT_LEARN not in {claim.verdict for claim in found.values()}
    # The eager pipeline, and the paper's without momentum, have no such excuse.
    for run in ("eager Pipe-SGD", "Pipe-SGD"):
        momentum = 0.9 if run.startswith("eager") else 0.0
        lost = claims(rows({(run, momentum): 0.1}))
        assert (
            lost[f"speed-up of {run} over D-Sync at momentum {momentum:g}"].verdict is Verdict.DID_NOT_LEARN
        )


def test_rows_in_another_order_have_the_same_verdicts() -> None:
    dead = {(run, 0.9): 0.1 for run in RUNS if run.startswith("Pipe-SGD")}
    found = claims(rows(dead))
    assert {title: each.verdict for title, each in claims(rows(dead)[::-1]).items()} == {
        title: each.verdict for title, each in found.items()
    }


def test_each_way_at_each_momentum_is_a_cell() -> None:
    """The paper's pipeline at momentum 0.9 is expected to fail, and is there all the same."""
    cells = EXHIBIT.experiment.cells(EXHIBIT.full)
    for kind in (TIME, TRAIN):
        found = {(cell["run"], cell["momentum"]) for cell in cells if cell["kind"] == kind}
        assert found == {(run, momentum) for run in RUNS for momentum in MOMENTA}
    assert {cell["seed"] for cell in cells if cell["kind"] == TRAIN} == {0, 1, 2}
    assert {cell["ratio"] for cell in cells if cell["kind"] == LINE} == {*RATIOS}
    titles = {claim.title for claim in EXHIBIT.claims(rows())}
    for run in (
        "PS-Sync",
        *(f"{name}{suffix}" for name in ("Pipe-SGD", "eager Pipe-SGD") for suffix in CODECS),
    ):
        for momentum in MOMENTA:
            assert f"accuracy of {run}, below D-Sync's at momentum {momentum:g}, on mnist" in titles


def test_a_removed_comparator_is_an_error() -> None:
    for removed in (TIME, TRAIN):
        left = [row for row in rows() if (row["kind"], row.get("run")) != (removed, "D-Sync+Q")]
        with pytest.raises((LookupError, ValueError)):
            EXHIBIT.claims(left)


def test_dead_trainings_that_agree_count_for_nothing() -> None:
    dead = [row | ({"accuracy": 0.1} if row["kind"] == TRAIN else {}) for row in rows()]
    assert {claim.verdict for claim in EXHIBIT.claims(dead)} == {Verdict.DID_NOT_LEARN}
