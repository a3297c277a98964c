from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from gradwire_lab.experiments.claim import Claim, Verdict
from gradwire_lab.experiments.smart_nic.options import STEP, SmartNicOptions, cells
from gradwire_lab.experiments.smart_nic.verdict import claims, error, parameters, predicted

RINGS = [{"part": "ring", "model_cycles": 1000.0, "cycles": cycles} for cycles in (1001, 1020)]
FIGURES = [
    {"part": "figure", "what": what, "source": "section V.B, figure 4b", "published": 2.0, "model": model}
    | {"how": how, "reason": reason}
    for what, model, how, reason in (
        ("NIC + BFP, 6 nodes: speedup", 2.1, "calibrated", "it was set"),
        ("NIC + BFP, 32 nodes: speedup", 1.9, "predicted", ""),
        ("NIC: backward saved", 9.0, "arithmetic", "it is 1 / 2"),
    )
]
MEASURED = {"compute_core_s": 6e-3, "update_core_s": 1e-3, "exchange_core_s": 1e-3, "exchange_s": 12e-3}


def rows(accuracy: float = 0.9, off: float = 1.0, **of_bfp: Any) -> list[dict[str, Any]]:
    """Return rows of a run in which steps take ``off`` times what the model says."""
    calibration, *steps = ({**cell, "data": "digits"} for cell in cells(SmartNicOptions((STEP,))))
    calibration |= MEASURED
    found = [calibration]
    for step in steps:
        trace = predicted(parameters(calibration), step)
        found.append(
            {
                **step,
                "step_s": [off * trace.total_s] * 3,
                "exposed_s": [trace.exposed_s] * 3,
                "backward_s": [trace.backward_s] * 3,
                "slowest_s": 1.0,
                "accuracies": [accuracy - 0.001, accuracy, accuracy + 0.001],
                **(of_bfp if step["codec"] != "identity" else {}),
            }
        )
    return found


def errors(found: list[dict[str, Any]]) -> list[Claim]:
    return [claim for claim in claims(found) if "error of predicted steps" in claim.text]


def test_errors_are_those_of_the_model() -> None:
    assert error(RINGS[1]) == pytest.approx(-20 / 1020)
    assert error(FIGURES[0]) == pytest.approx(0.05)
    calibration, step, *_ = rows(off=2.0)
    assert error(step, calibration) == pytest.approx(-0.5)


def test_figures_that_hold_by_construction_say_so() -> None:
    found = claims(FIGURES)
    assert [each.verdict for each in found] == [
        Verdict.CALIBRATED,
        Verdict.MODELLED,
        Verdict.NOT_REPRODUCED,
    ]
    assert found[0].published is not None
    assert found[0].published.erratum == "By construction: it was set."
    arithmetic = claims([{**FIGURES[2], "model": 2.0}])
    assert [each.verdict for each in arithmetic] == [Verdict.ARITHMETIC]


def test_cycles_that_are_not_the_models_fail() -> None:
    assert [each.verdict for each in claims(RINGS[:1])] == [Verdict.MODELLED]
    assert [each.verdict for each in claims(RINGS)] == [Verdict.NOT_REPRODUCED]


def test_the_error_is_that_of_each_prediction() -> None:
    assert {each.verdict for each in errors(rows())} == {Verdict.REPRODUCED}
    assert {each.verdict for each in errors(rows(off=1.02))} == {Verdict.REPRODUCED}
    assert {each.verdict for each in errors(rows(off=0.96))} == {Verdict.NOT_REPRODUCED}
    one = rows()
    one[-1] |= {"step_s": [2 * fmean(one[-1]["step_s"])] * 3}
    assert [each.verdict for each in errors(one)].count(Verdict.NOT_REPRODUCED) == 1


def test_parameters_of_a_predicted_configuration_reproduce_nothing() -> None:
    """Planted: the model is calibrated on one of the configurations that it is compared with."""
    found = rows()
    chosen = next(row for row in found[1:] if row["hosts"] == 4 and row["batch"] == 448)
    fitted = {**found[0], **{name: chosen[name] for name in ("hosts", "rate", "width", "batch")}}
    assert {each.verdict for each in errors([fitted, *found[1:]])} <= {
        Verdict.CALIBRATED,
        Verdict.NOT_REPRODUCED,
    }


def test_dead_trainings_turn_every_claim_about_steps() -> None:
    assert {each.verdict for each in claims(rows(accuracy=0.1))} == {Verdict.DID_NOT_LEARN}


def test_a_codec_that_ends_elsewhere_turns_its_claims() -> None:
    found = claims(rows(accuracies=[0.8, 0.8, 0.8]))
    turned = [each for each in found if each.verdict is Verdict.DID_NOT_LEARN]
    assert turned
    assert all("BFP" in each.text or "bfp" in each.text for each in turned)
    assert len(turned) == sum("BFP" in each.text or "bfp" in each.text for each in found)


def test_one_seed_is_too_short() -> None:
    short = [{**row, "accuracies": [0.9]} if row["part"] == "step" else row for row in rows()]
    assert {each.verdict for each in errors(short)} == {Verdict.TOO_SHORT}


def test_a_comparator_that_is_removed_leaves_no_claim_met() -> None:
    without = [row for row in rows() if row.get("method") != "overlapped"]
    (saved,) = [each for each in claims(without) if each.text == "NIC: part of the step saved"]
    assert saved.verdict is Verdict.NOT_REPRODUCED


def test_counterparts_are_those_of_the_times() -> None:
    found = rows()
    most = [row for row in found[1:] if row["hosts"] == 4 and row["batch"] == 448]
    for row in most:
        seconds = {"overlapped": 1.0, "layer-wise": 0.82, "naive": 2.0}[row["method"]]
        row["step_s"] = [0.6 if row["codec"] != "identity" and row["method"] == "layer-wise" else seconds] * 3
    by_text = {(each.text, each.system): each for each in claims(found)}
    where = "batch 448, 4 hosts"
    assert by_text["NIC: part of the step saved", where].mean == pytest.approx(0.18)
    assert by_text["NIC + BFP: part of the step saved", where].mean == pytest.approx(0.40)
    assert by_text["NIC + BFP: speed-up", where].mean == pytest.approx(1 / 0.6)
    assert by_text["naive: exposed part of the step", "batch 1792, 4 hosts"].mean is not None


def test_a_part_that_was_left_out_has_no_claims() -> None:
    assert [each.text for each in claims(RINGS)] == ["cycles of a simulated ring: largest error of T_AR"]
