"""Small trainings with every policy: what must be equal is, and AWP's bits are those of algorithm 1."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest
import torch

from gradwire.errors import DeviceError
from gradwire_lab.experiments.a2dtwp.options import POLICIES, TRAINS_AS, A2dtwpOptions
from gradwire_lab.experiments.a2dtwp.training import train

OPTIONS = A2dtwpOptions(images=96, batches=14, narrower=64)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Train VGG with every policy."""
    pytest.importorskip("sklearn")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRADWIRE_DATA", raising=False)
        patch.setattr("gradwire_lab.experiments.a2dtwp.training.VALIDATION", 50)
        return {policy: train(OPTIONS, "vgg-bn", policy, seed=1) for policy in POLICIES}


def test_lossless_policies_share_a_training_because_they_learn_the_same(
    rows: dict[str, dict[str, Any]],
) -> None:
    for policy, other in TRAINS_AS.items():
        assert rows[policy]["errors"] == rows[other]["errors"]
    assert rows["static:8"]["errors"] != rows["fp32"]["errors"]


def test_errors_are_measured_at_even_distances(rows: dict[str, dict[str, Any]]) -> None:
    threads = torch.get_num_threads()
    for row in rows.values():
        assert [batch for batch, _ in row["errors"]] == [*range(1, 15)]
        assert row["accuracy"] == pytest.approx(1 - sum(error for _, error in row["errors"][-3:]) / 3)
        assert (row["images"], row["epoch"]) == ("digits", 3)
    assert torch.get_num_threads() == threads
    assert [rows[name]["bits"] for name in ("static:24", "bf16")] == [[(1, [24] * 11)], [(1, [16] * 11)]]


def test_awp_watches_an_epoch_in_32_bits_and_then_begins_with_8(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["awp"]
    assert row["bits"][0] == (1, [32] * 11)
    assert row["bits"][1] == (3, [8] * 11)
    assert isinstance(row["threshold"], float)
    assert rows["fp32"]["threshold"] is None
    for (_, before), (_, now) in pairwise(row["bits"][1:]):
        assert all(new - old in (0, 8) for old, new in zip(before, now, strict=True))


def test_a_training_that_fails_ends_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DeviceError("lost")

    pytest.importorskip("sklearn")
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    monkeypatch.setattr("gradwire_lab.experiments.a2dtwp.training.error_of", fail)
    with pytest.raises(DeviceError, match="lost") as caught:
        train(OPTIONS, "vgg-bn", "fp32", seed=1)
    assert caught.tb is not None, "which holds everything that wasn't closed"
    assert not [each for each in threading.enumerate() if each.name.startswith("gradwire")]
