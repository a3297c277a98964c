"""What users get wrong with ``gradwire.attach``: an error that says what to do, or the right result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.checkpoints import sealed
from gradwire.errors import AttachError, ExchangeError, SpecError, StateError
from support.saved_residuals import residuals_in

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _ddp(**options: Any) -> DistributedDataParallel:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    if options.pop("frozen", False):
        model[0].requires_grad_(False)
    return DistributedDataParallel(model, **options)


def _train(model: nn.Module) -> None:
    torch.autograd.backward(model(X).square().sum())


def _has_gradient(module: nn.Module) -> bool:
    return all(each.grad is not None for each in module.parameters())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Linear(3, 1), "got a Linear; wrap the model in DistributedDataParallel first"),
        (lambda: nn.Sequential(_ddp()), "got a Sequential; wrap the model in DistributedDataParallel first"),
        (lambda: "model", "got a str; wrap"),
        (lambda: None, "got a NoneType; wrap"),
        (lambda: torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1), "got a SGD; wrap"),
    ],
)
def test_what_is_no_ddp_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(AttachError, match=f"attach: expected a DistributedDataParallel, {said}"):
        gradwire.attach(make())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": 8}, "expected a Plan, a codec, its spec or the path of a plan's file for plan, got 8"),
        ({"plan": "gzip"}, "unknown codec 'gzip'; choose one of"),
        ({"plan": "nowhere/plan.json"}, "the plan nowhere/plan.json cannot be read"),
        (
            {"plan": gradwire.Plan(pipeline=2)},
            "a plan with pipeline=1, .* train with gradwire.PipeSGD",
        ),
        (
            {"plan": gradwire.Plan(exchange="sharded")},
            "attach: expected a plan with exchange='all_reduce', .* train with .*Sharded",
        ),
        ({"timeout_s": "1"}, "expected timeout_s above 0 and at most .*, got '1'"),
        ({"begin_timeout_s": 0}, "expected begin_timeout_s above 0"),
        ({"ledger": "x.jsonl"}, "attach: expected a gradwire.Ledger or None for ledger, got 'x.jsonl'"),
        ({"strict": "no"}, "attach: expected True or False for strict, got 'no'"),
    ],
)
def test_a_wrong_option_is_refused_and_a_right_one_taken_after_it(options: dict[str, Any], said: str) -> None:
    model = _ddp()
    with pytest.raises(SpecError, match=said):
        gradwire.attach(model, **options)
    attached = gradwire.attach(model, timeout_s=5)
    _train(model)
    attached.close()


def test_attaching_twice_and_after_close_says_what_to_do() -> None:
    model = _ddp()
    attached = gradwire.attach(model)
    with pytest.raises(AttachError, match="without gradwire, got one that is attached; use the result of"):
        gradwire.attach(model)
    _train(model)
    attached.close()
    attached.close()
    with pytest.raises(AttachError, match=r"attachment was closed or has failed; .* new DistributedDataPara"):
        gradwire.attach(model)
    with pytest.raises(ExchangeError, match="exchange is closed; wrap the module in a new"):
        _train(model)
    again = DistributedDataParallel(model.module)
    attached = gradwire.attach(again)
    _train(again)
    attached.close()


def test_an_attached_model_is_none_for_a_pipeline() -> None:
    model = _ddp()
    attached = gradwire.attach(model)
    with pytest.raises(SpecError, match=r"pass model\.module, and call"):
        gradwire.PipeSGD(model, torch.optim.SGD(model.parameters(), lr=0.1))
    _train(model)
    attached.close()


@pytest.mark.parametrize("state", ["x", {}, {"weight": torch.ones(1)}, None])
def test_a_foreign_state_is_refused(state: Any) -> None:
    attached = gradwire.attach(_ddp(), "topk:0.5")
    with pytest.raises(
        StateError, match=r"rank 0: expected the state of this rank, .*; load on each rank the"
    ):
        attached.load_state_dict(state)
    attached.close()


def test_a_state_of_an_earlier_version_is_loaded() -> None:
    with gradwire.attach(DistributedDataParallel(nn.Linear(4, 2)), "topk:0.1") as attached:
        older = {"rank": 0, "world": 1, "residuals": {"weight": torch.arange(8.0)}, "steps_done": 3}
        attached.load_state_dict(sealed(older))
        found = residuals_in(attached.state_dict())
        assert (found["weight"].tolist(), found["bias"].tolist()) == ([*range(8)], [0, 0])
        with pytest.raises(StateError, match="the residuals of rank 0 do not match their checksum"):
            attached.load_state_dict({**sealed(older), "steps_done": 4})
        with pytest.raises(StateError, match="of rank 1 of 2"):
            attached.load_state_dict({**older, "rank": 1, "world": 2})


def test_a_parameter_that_ddp_does_not_know_is_told_when_it_is_unfrozen() -> None:
    """DDP averages what asked for a gradient when it was made; the rest would differ from rank to rank."""
    model = _ddp(frozen=True)
    attached = gradwire.attach(model)
    _train(model)
    model.module[0].requires_grad_(True)
    with pytest.raises(
        AttachError, match=r"0\.weight was unfrozen after .* before you create the DistributedDataParallel"
    ):
        model(X)
    with torch.no_grad():
        model(X)
    attached.close()
    again = DistributedDataParallel(model.module)
    attached = gradwire.attach(again)
    _train(again)
    attached.close()
    assert model.module[0].weight.grad is not None


def test_a_parameter_that_was_frozen_after_ddp_was_made_may_be_unfrozen() -> None:
    model = _ddp(find_unused_parameters=True)
    model.module[0].requires_grad_(False)
    attached = gradwire.attach(model)
    _train(model)
    assert not _has_gradient(model.module[0])
    model.module[0].requires_grad_(True)
    _train(model)
    assert _has_gradient(model.module[0])
    attached.close()


def test_a_frozen_parameter_has_no_gradient_as_in_ddp() -> None:
    model = _ddp(find_unused_parameters=True)
    attached = gradwire.attach(model)
    _train(model)
    model.module[0].requires_grad_(False)
    model.zero_grad()
    _train(model)
    assert model.module[0].weight.grad is None
    attached.close()
