"""Buckets that nothing compresses go to the transport, past the communication thread; the oracle is DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradwire
from support import native_ranks
from support.sums import bits
from support.told_line import WARM_UP, unpaced

RunProcesses = Callable[..., list[Any]]
BACKEND = gradwire.Plan(algorithm="backend")
STEPS = 12

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="default"),
        pytest.param({"gradient_as_bucket_view": True}, id="views"),
        pytest.param({"static_graph": True}, id="static"),
    ],
)
def test_they_train_as_ddp_does_and_are_counted(
    world: int, options: dict[str, Any], run_processes: RunProcesses
) -> None:
    results = run_processes(world, native_ranks.trained, options, BACKEND, STEPS)
    for result in results:
        assert torch.equal(bits(result["ours"]), bits(results[0]["ours"]))
        torch.testing.assert_close(result["ours"], result["plain"], rtol=1e-5, atol=1e-6)
        assert result["past"] == results[0]["past"], "all ranks take the same way"
        # DDP cuts its buckets anew after a step; then a length is compared once, and Gloo connects.
        assert len(result["past"]) >= result["buckets"] * (STEPS - 4)
        assert result["steps"] == STEPS
        assert result["exchanges"] >= len(result["past"]) > 0
        assert result["ratio"] == pytest.approx(1.0, rel=0.05)
        assert result["bypasses"] == 0


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("fp8", id="a codec"),
        pytest.param(gradwire.Plan(), id="frames"),
        pytest.param(
            gradwire.Plan(algorithm="backend", codecs=[{"match": "bias", "codec": "bf16"}]), id="two codecs"
        ),
        pytest.param(gradwire.Plan(algorithm="backend", residual=True), id="residuals"),
    ],
)
def test_the_thread_exchanges_all_others(plan: Any, run_processes: RunProcesses) -> None:
    for result in run_processes(2, native_ranks.trained, {}, plan, 6):
        assert result["past"] == []


def test_a_run_that_chooses_no_compression_samples_and_decides_as_ever(run_processes: RunProcesses) -> None:
    with unpaced():  # how many steps a paced choice takes depends on the machine
        settings = gradwire.Auto(codecs=["identity"])
    results = run_processes(2, native_ranks.chosen, settings, WARM_UP + 12)
    for result in results:
        assert torch.equal(bits(result["ours"]), bits(results[0]["ours"]))
        # The first steps go through fp8.
        torch.testing.assert_close(result["ours"], result["plain"], rtol=1e-2, atol=1e-2)
        assert result["past"] == results[0]["past"]
        assert 0 < len(result["past"]) < result["exchanges"]
