"""Timed batches of a small network in the place of those in full size."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from gradwire.errors import DeviceError
from gradwire_lab.experiments.a2dtwp import training as timing
from gradwire_lab.experiments.a2dtwp.models import FULL_SIDE
from gradwire_lab.experiments.a2dtwp.options import A2dtwpOptions

OPTIONS = A2dtwpOptions(timed_batches=3, timed_size=2)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build a linear layer instead of the networks."""
    pytest.importorskip("sklearn")
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)

    def build(_name: str, shape: object, seed: int, *, he: bool) -> nn.Module:
        assert (getattr(shape, "side", None), getattr(shape, "narrower", None)) == (FULL_SIDE, 1)
        assert he
        torch.manual_seed(seed)
        return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 200))

    monkeypatch.setattr(timing, "build", build)


def test_the_pace_is_that_of_computation_alone() -> None:
    found = timing.pace(OPTIONS)
    assert found["nbytes"] == 4 * (48 * 200 + 200)
    assert found["compute_s"] > 0


@pytest.mark.parametrize("policy", ["fp32", "awp:8", "delta"])
def test_batches_are_timed_on_both_links_at_the_rate_of_the_paced_network(policy: str) -> None:
    found = timing.time_batches(OPTIONS, "vgg", policy, compute_s=0.004, nbytes=2 * 39200)
    assert {name: len(each["batch_s"]) for name, each in found["cycles"].items()} == {"x86": 3, "power": 3}
    if policy == "fp32":  # half the bytes of the paced network take half of the published share
        transfer_s = max(found["cycles"]["x86"]["transfer_s"])  # a late sender's time is the next batch's
        assert transfer_s >= 0.95 * 0.5 * 0.004 * 153.93 / 162.23


def test_batches_that_fail_end_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DeviceError("lost")

    monkeypatch.setattr("gradwire_lab.experiments.a2dtwp.trainee.Trainee.cycle", fail)
    with pytest.raises(DeviceError, match="lost") as caught:
        timing.time_batches(OPTIONS, "vgg", "fp32", compute_s=0.004, nbytes=None)
    assert caught.tb is not None, "which holds everything that wasn't closed"
    assert not [each for each in threading.enumerate() if each.name.startswith("gradwire")]
