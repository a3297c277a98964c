"""A small training with every policy: what must be equal is, and AWP's bits are those of algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from gradwire.experiments.a2dtwp import runs
from gradwire.experiments.a2dtwp.options import POLICIES, Options, cells
from gradwire.experiments.experiment import Reporter

INTERVAL = 4


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Train AlexNet with every policy."""
    pytest.importorskip("sklearn")
    options = Options(models=("alexnet",), batches=20, batch_size=16, narrower=32, interval=INTERVAL)
    found: list[Any] = []
    threads = torch.get_num_threads()
    said: list[str] = []
    runs.run(options, cells(options), [], Reporter(found.append, said.append))
    assert said[-1] == "alexnet: 20 of 20 batches"
    assert torch.get_num_threads() == threads
    return {row["policy"]: row for row in found}


def test_every_policy_has_a_row_with_a_third_of_the_batches_on_each_link(
    rows: dict[str, dict[str, Any]],
) -> None:
    assert [*rows] == [*POLICIES]
    for row in rows.values():
        assert [batch for batch, _ in row["errors"]] == [15, 20]
        assert {system: len(each["batch_s"]) for system, each in row["cycles"].items()} == {
            "x86": 6,
            "power": 7,
            "unlimited": 7,
        }
        assert all(0 <= error <= 1 for _, error in row["errors"])


def test_lossless_policies_learn_as_what_they_carry(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["delta:fp32"]["errors"] == rows["fp32"]["errors"]
    assert rows["delta"]["errors"] == rows["bf16"]["errors"]


def test_bytes_are_those_of_the_formats(rows: dict[str, dict[str, Any]]) -> None:
    sent = {name: row["cycles"]["x86"]["sent_nbytes"][-1] for name, row in rows.items()}
    assert sent["fp32"] == pytest.approx(4 * rows["fp32"]["parameters"], rel=0.02)
    assert sent["static:24"] == pytest.approx(0.75 * sent["fp32"], rel=0.03)
    assert sent["static:16"] == sent["bf16"] == pytest.approx(sent["fp32"] / 2, rel=0.05)
    assert sent["static:8"] == pytest.approx(sent["fp32"] / 4, rel=0.1)


def test_the_bits_of_awp_are_those_of_algorithm_1_on_its_norms(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["awp"]
    assert len(row["norms"]) == len(row["bits"]) == 21
    assert row["bits"] == algorithm_1(row["norms"], row["threshold"])
    assert rows["fp32"]["norms"] == []


def algorithm_1(norms: Sequence[Sequence[float]], threshold: float) -> list[list[int]]:
    """Return the bits of A2DTWP's algorithm 1, before the first batch and after each."""
    columns = []
    for layer in zip(*norms, strict=True):
        bits, count, found = 8, 0, [8]
        for before, now in pairwise(layer):
            count += (now - before) / before < threshold
            if count == INTERVAL:
                bits, count = min(bits + 8, 32), 0
            found.append(bits)
        columns.append(found)
    return [[*row] for row in zip(*columns, strict=True)]
