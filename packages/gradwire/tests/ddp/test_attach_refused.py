from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed._composable import replicate_with_fsdp
from torch.distributed._composable.replicate import replicate
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.autotune.settings import Auto
from gradwire.ddp.checks import not_ddp
from gradwire.errors import AttachError, SpecError
from gradwire.log import LOG


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _agreed(plan: Any, module: nn.Module | None = None, **options: Any) -> gradwire.Plan:
    model = DistributedDataParallel(module or nn.Linear(3, 1), **options)
    with gradwire.attach(model, plan, timeout_s=5.0) as attached:
        return attached.plan


def test_a_spec_a_plan_and_auto_give_a_plan() -> None:
    assert _agreed("quantize:8") == gradwire.Plan(gradwire.parse("quantize:8"))
    assert _agreed(gradwire.Plan(algorithm="tree")).algorithm == "tree"
    auto = Auto()
    assert _agreed(auto) == auto.first_plan


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(SpecError, match="attach: expected a plan with pipeline=1, got pipeline=2"):
        _agreed(gradwire.Plan(pipeline=2))


def test_a_model_with_sparse_gradients_is_refused() -> None:
    embedding = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    with pytest.raises(AttachError, match=r"sparse gradients from 0; create the embedding with sparse=False"):
        _agreed("fp16", embedding)


def test_the_reducer_in_python_is_refused() -> None:
    """torch sets the flag for its whole process when such a model is made, so the test sets it."""
    model = DistributedDataParallel(nn.Linear(3, 1))
    assert model._use_python_reducer is False
    model._use_python_reducer = True
    with pytest.raises(
        AttachError, match=r'optimize_ddp=True, got "python_reducer", .*; set optimize_ddp to True before you'
    ):
        gradwire.attach(model, "fp16", timeout_s=5.0)


def test_a_model_that_is_no_ddp_gets_advice_of_its_own() -> None:
    replicated = replicate(nn.Linear(3, 1))
    assert "remove replicate, wrap the model in DistributedDataParallel" in not_ddp(replicated)
    by_fsdp = replicate_with_fsdp.replicate(nn.Linear(3, 1))
    assert not_ddp(by_fsdp).endswith("use gradwire.attach_fsdp")
    compiled = torch.compile(DistributedDataParallel(nn.Linear(3, 1)), backend="eager")
    assert not_ddp(compiled).endswith("attach model._orig_mod instead")
    assert not_ddp(nn.Linear(3, 1)).endswith("a Linear; wrap the model in DistributedDataParallel first")


def test_the_first_line_precedes_an_import_that_takes_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def import_all() -> None:
        events.append("import")
        raise ImportError("no such file")

    # Whether a line is shown depends on levels that other tests may have set.
    monkeypatch.setattr(LOG, "info", lambda text, *args: events.append(text % args))
    monkeypatch.setattr("gradwire.ddp.attach.import_all_of_torch", import_all)
    with pytest.raises(ImportError):
        gradwire.attach(DistributedDataParallel(nn.Linear(4, 2)), "fp8")
    assert events == ["1 host, 1 rank, fp8 over ring", "import"]
