"""What users get wrong at a front door: an error of gradwire's that says what to do, or the right result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR

import gradwire
from gradwire import DSync
from gradwire.errors import ExchangeError, GradwireError, SpecError, StateError, TensorError

X = torch.ones(2, 3)


@dataclass(frozen=True)
class Door:
    """A training method: how it is made of a model and an optimizer, and options that it refuses."""

    make: Callable[..., Any]
    options: dict[str, tuple[Any, str]] = field(default_factory=dict)


PIPELINES: dict[str, tuple[Any, str]] = {
    "correction": ("shift", "expected one of eager, none for correction, got 'shift'"),
    "on_average": ("mean", "expected a function of the parameters for on_average, got 'mean'"),
    "warmup_steps": (1.5, r"expected a whole number of at least 0 for warmup_steps, got 1\.5"),
}
DOORS = {
    "DSync": Door(
        lambda model, optimizer, **more: DSync(
            model, optimizer, **{"group": gradwire.loopback(1)[0], **more}
        ),
        options={
            "ledger": ("x.jsonl", "DSync: expected a gradwire.Ledger or None for ledger, got 'x.jsonl'"),
            "strict": ("no", "DSync: expected True or False for strict, got 'no'"),
            "plan": (8, "expected a Plan, a codec, its spec or the path of a plan's file for plan, got 8"),
            "timeout_s": (-1, "expected timeout_s above 0"),
        },
    ),
    "PipeSGD": Door(
        lambda model, optimizer, **more: gradwire.PipeSGD(
            model, optimizer, **{"group": gradwire.loopback(1)[0], **more}
        ),
        options={
            **PIPELINES,
            "max_norm": ("1", "expected a max_norm above 0, or None for no clipping, got '1'"),
            "timeout_s": (-1, "expected timeout_s above 0"),
            "plan": (8, "expected a Plan, a codec, its spec or the path of a plan's file for plan, got 8"),
            "group": (
                "gloo",
                "expected a group of torch.distributed|torch.distributed is not initialised",
            ),
        },
    ),
}
OPTIONS = {f"{name}-{option}": (door, option) for name, door in DOORS.items() for option in door.options}


@pytest.fixture(params=DOORS.values(), ids=list(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    found: Door = request.param
    return found


@pytest.fixture(params=OPTIONS.values(), ids=list(OPTIONS))
def option(request: pytest.FixtureRequest) -> tuple[Door, str]:
    found: tuple[Door, str] = request.param
    return found


def new_model() -> nn.Module:
    return nn.Linear(3, 1)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def refuses(error: type[GradwireError], said: str) -> Any:
    return pytest.raises(error, match=f"(?s){said}")


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: "resnet", SpecError, "expected a torch.nn.Module, got 'resnet'; pass the model"),
        (lambda: nn.Linear, SpecError, "expected a torch.nn.Module, got <class"),
        (lambda: list(new_model().parameters()), SpecError, "expected a torch.nn.Module, got .Parameter"),
        (
            lambda: sgd(new_model()),
            SpecError,
            "expected a torch.nn.Module, got SGD .*then the optimizer",
        ),
        (lambda: new_model().double(), TensorError, "got a torch.float64 tensor .*; convert trained"),
        (lambda: new_model().half(), TensorError, "got a torch.float16 tensor .*; convert trained"),
        (lambda: new_model().to("meta"), TensorError, "on meta .*; use .*model"),
        (lambda: nn.LazyLinear(3), TensorError, "expected parameters with shapes, .* run a forward pass"),
        (
            lambda: new_model().requires_grad_(False),
            TensorError,
            "got none; set requires_grad",
        ),
        (lambda: nn.ReLU(), TensorError, "expected a model with at least one trainable parameter"),
    ],
)
def test_a_wrong_model_is_refused(
    door: Door, make: Callable[[], Any], error: type[GradwireError], said: str
) -> None:
    with refuses(error, said):
        door.make(make(), sgd(new_model()))


def test_a_ddp_model_is_refused_wherever_it_is(door: Door) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(new_model())
        for each in (model, nn.Sequential(model)):
            with refuses(
                SpecError,
                r"own all-reduce, got .*DistributedDataParallel.*; pass model\.module",
            ):
                door.make(each, sgd(each))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: None, "expected an optimizer of torch.optim, got None; create one"),
        (lambda _: torch.optim.SGD, "expected an optimizer of torch.optim, got <class"),
        (lambda model: StepLR(sgd(model), 1), "expected an optimizer of torch.optim, got <torch"),
        (lambda model: model, "expected an optimizer of torch.optim, got Linear"),
        (lambda model: torch.optim.LBFGS(model.parameters()), "needs no closure, got LBFGS"),
        (
            lambda _: sgd(new_model()),
            r"got 2 other parameters .*create the optimizer from model\.parameters\(\)",
        ),
        (
            lambda model: torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(7))], lr=0.1),
            r"got 1 other parameters \(the first of shape \(7,\)\)",
        ),
    ],
)
def test_a_wrong_optimizer_is_refused(door: Door, make: Callable[[nn.Module], Any], said: str) -> None:
    model = new_model()
    with refuses(SpecError, said):
        door.make(model, make(model))


def test_a_wrong_option_is_refused(option: tuple[Door, str]) -> None:
    door, name = option
    model, (value, said) = new_model(), door.options[name]
    with refuses(GradwireError, said):
        door.make(model, sgd(model), **{name: value})


def test_a_loss_instead_of_a_function_is_refused(door: Door) -> None:
    model = new_model()
    method = door.make(model, sgd(model))
    with refuses(SpecError, r"step: expected a function that computes the loss, got tensor.*step\(lambda"):
        method.step(model(X).sum())
    method.close()


def _with_backward(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(X).square().sum()
    torch.autograd.backward(loss)
    return loss


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda _: None, r"a tensor of one value, got None; write step\(lambda"),
        (lambda model: model(X).sum().item(), "a tensor of one value, got"),
        (lambda model: (model(X).sum(), 1), r"a tensor of one value, got \(tensor"),
        (lambda model: model(X), r"got a tensor of shape \(2, 1\)"),
        (lambda model: model(X).sum().detach(), "got one without a graph; remove .detach"),
        (lambda model: model(X).sum() * 1j, "to return a real loss, got one of torch.complex64"),
        (_with_backward, "call no backward.. in compute_loss"),
    ],
)
@pytest.mark.parametrize("bucket_nbytes", [None, 4])
def test_what_is_no_loss_is_refused_and_the_step_may_be_repeated(
    door: Door, compute: Callable[[nn.Module], Any], said: str, bucket_nbytes: int | None
) -> None:
    model = new_model()
    before = [each.detach().clone() for each in model.parameters()]
    plan = gradwire.Plan(bucket_nbytes=bucket_nbytes)
    more = {"plan": plan}
    method = door.make(model, sgd(model), **more)
    with refuses(TensorError, said):
        method.step(lambda: compute(model))
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    method.step(lambda: model(X).sum())
    method.drain()
    assert not torch.equal(before[0], next(model.parameters()))
    method.close()


def test_a_closed_method_says_so(door: Door) -> None:
    model = new_model()
    method = door.make(model, sgd(model))
    method.step(lambda: model(X).sum())
    method.drain()
    method.close()
    method.close()
    method.abort()
    calls = [lambda: method.step(lambda: model(X).sum()), method.synchronise]
    if isinstance(method, gradwire.PipeSGD):
        calls += [method.check_replicas, lambda: method.load_state_dict({})]
    for call in calls:
        with refuses(ExchangeError, "rank 0: this .* is closed; create a new "):
            call()
    assert method.drain().cost.raw_nbytes == 0, "everything was applied"
    if isinstance(method, gradwire.PipeSGD):
        assert method.state_dict()
        with method.evaluating():
            assert not model.training


def test_what_close_has_dropped_is_told() -> None:
    model = new_model()
    pipe = gradwire.PipeSGD(model, sgd(model), group=gradwire.loopback(1)[0])
    pipe.step(lambda: model(X).sum())
    pipe.close()
    calls: list[Callable[[], object]] = [pipe.drain, pipe.state_dict, lambda: pipe.evaluating().__enter__()]
    for call in calls:
        with refuses(ExchangeError, r"close\(\) dropped 1 gradients in flight of this PipeSGD; call drain"):
            call()


@pytest.mark.parametrize("state", ["x", {}, {"weight": torch.ones(1)}, None, [1]])
def test_a_foreign_state_is_refused(state: Any) -> None:
    model = new_model()
    pipe = gradwire.PipeSGD(model, sgd(model), group=gradwire.loopback(1)[0])
    with refuses(StateError, "rank 0: expected the state of this rank"):
        pipe.load_state_dict(state)
    pipe.close()


def test_an_optimizer_that_gets_foreign_parameters_later_is_refused() -> None:
    model = new_model()
    optimizer = sgd(model)
    with DSync(model, optimizer, group=gradwire.loopback(1)[0]) as method:
        method.step(lambda: model(X).sum())
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        with refuses(SpecError, "got 1 other parameters"):
            method.step(lambda: model(X).sum())
