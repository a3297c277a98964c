from __future__ import annotations

import pytest

from gradwire_lab.experiments.smart_nic.verdict import compression, is_calibrated_on, parameters, predicted

PLACE = {"hosts": 2, "rate": "80mbit", "layers": 2, "width": 100, "batch": 50}
# A layer has 40 kB, so 2 hosts send 40 kB each, for which 80 Mbit/s take 4 ms.
CALIBRATION = {
    **PLACE,
    "part": "calibration",
    "compute_core_s": 2e-3,
    "update_core_s": 4e-4,
    "exchange_core_s": 1e-3,
    "exchange_s": 5e-3,
}


def step(**changed: object) -> dict[str, object]:
    return {**PLACE, "part": "step", "method": "layer-wise", "codec": "identity", **changed}


def test_the_parameters_by_hand() -> None:
    known = parameters(CALIBRATION)
    assert known.flops_per_s == pytest.approx(2 * 6 * 100**2 * 50 / 2e-3)
    assert known.update_s_per_parameter == pytest.approx(4e-4 / 20000)
    assert known.usable_share == pytest.approx(4 / 5)
    assert known.adds_per_s == pytest.approx(10000 / 1e-3)


def test_steps_by_hand() -> None:
    """Of 2 hosts: T_F 0.667, T_B 1.333, T_U 0.4, T_ring 5, T_add 2 ms, each for one layer of two."""
    known = parameters(CALIBRATION)
    naive = predicted(known, step(method="naive"))
    assert naive.forward_s == pytest.approx(2 * 2e-3 / 3)
    assert naive.backward_s == pytest.approx(2 * 4e-3 / 3)
    assert naive.exposed_s == pytest.approx(2 * 5e-3)
    assert naive.update_s == pytest.approx(2 * 4e-4)
    layered = predicted(known, step())
    assert layered.exposed_s == pytest.approx((5 - 4 / 3 + 5 - 0.4) * 1e-3)
    overlapped = predicted(known, step(method="overlapped"))
    assert overlapped.backward_s == pytest.approx(2 * (4 / 3 + 2) * 1e-3)


def test_an_all_reduce_takes_its_largest_term() -> None:
    """With BFP, T_ring is 1.33 ms, and T_add 2 ms: the core that adds is the limit."""
    known = parameters(CALIBRATION)
    assert predicted(known, step(method="naive", codec="bfp:7x16")).exposed_s == pytest.approx(2 * 2e-3)
    slow = predicted(known, step(method="naive", codec="bfp:7x16", rate="8mbit"))
    assert slow.exposed_s == pytest.approx(2 * 50e-3 * 136 / 512)


def test_more_hosts_share_a_core() -> None:
    known = parameters(CALIBRATION)
    two, four = (predicted(known, step(hosts=hosts)) for hosts in (2, 4))
    assert four.backward_s == pytest.approx(2 * two.backward_s)
    assert four.update_s == pytest.approx(2 * two.update_s)


def test_a_calibration_is_of_its_own_configuration_whatever_the_schedule_and_codec() -> None:
    assert is_calibrated_on(CALIBRATION, step(codec="bfp:7x16"))
    for changed in ({"hosts": 3}, {"rate": "8mbit"}, {"layers": 3}, {"width": 200}, {"batch": 51}):
        assert not is_calibrated_on(CALIBRATION, step(**changed))


def test_compression_is_that_of_the_format() -> None:
    assert compression("identity") == 1
    assert compression("bfp:7x16") == 512 / 136
