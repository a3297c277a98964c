"""Steps between distant hosts: the plan and the workload of a cell, and a model whose gradient is known."""

from __future__ import annotations

import pytest
import torch

from gradwire.codecs import parse
from gradwire_lab.experiments.prediction.steps import Weights, plan_of, workload_of

CELL = {"hosts": 2, "nbytes": 1 << 20, "algorithm": "ring", "codec": "fp8", "segment_nbytes": 1 << 18}


@pytest.mark.parametrize(("buckets", "lanes"), [(1, 1), (16, 4)])
def test_a_cell_has_a_bucket_for_each_parameter(buckets: int, lanes: int) -> None:
    cell = {**CELL, "buckets": buckets, "lanes": lanes}
    plan, workload = plan_of(cell), workload_of(cell, 0.25, 0.5)
    assert (plan.codec, plan.lanes, plan.segment_nbytes) == (parse("fp8"), lanes, 1 << 18)
    parts = workload.parts(plan.bucket_nbytes)
    assert [part.count for part in parts] == [(1 << 18) // buckets] * buckets
    assert parts[-1].ready_s == 0.5
    assert workload.compute_s == 0.75


def test_the_models_gradient_is_the_given_one_and_its_parameters_are_the_buckets() -> None:
    wanted = torch.arange(1024.0)
    model = Weights(wanted, 16)
    model().backward()
    assert [len(part) for part in model.parts] == [64] * 16
    assert torch.equal(torch.cat([part.grad for part in model.parts if part.grad is not None]), wanted)
