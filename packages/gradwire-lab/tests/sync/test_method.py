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
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker

X = torch.ones(2, 3)
STAR = gradwire.Plan(algorithm="star")


@dataclass(frozen=True)
class Door:
    """How a method is made of a model and an optimizer; a worker of a server has no optimizer."""

    make: Callable[..., Any]
    has_optimizer: bool = True
    steps: bool = True
    options: dict[str, tuple[Any, str]] = field(default_factory=dict)


def _links(world: int) -> list[gradwire.Link]:
    return list(gradwire.loopback(world))


PIPELINES: dict[str, tuple[Any, str]] = {
    "correction": ("shift", "a correction is one of eager, none, but 'shift' came"),
    "on_average": ("mean", "on_average must be a function of the parameters, but is 'mean'"),
    "warmup_steps": (1.5, r"warmup_steps must be a whole number of steps from 0 up, but is 1\.5"),
}
SERVERS = {
    "ledger": ("x.jsonl", "must be a gradwire.Ledger or None, but is 'x.jsonl'"),
    "weight_codec": (3, "weight_codec must be a codec, its spec or None, but is 3"),
}
DOORS = {
    "DSync": Door(
        lambda model, optimizer, **more: DSync(model, optimizer, **{"group": _links(1)[0], **more}),
        options={
            "ledger": ("x.jsonl", "the ledger of DSync must be a gradwire.Ledger or None, but is 'x.jsonl'"),
            "strict": ("no", "strict must be True or False in DSync, but is 'no'"),
            "plan": (8, "plan must be a Plan, a codec, its spec or the path of a plan's file, but is 8"),
            "timeout_s": (-1, "timeout_s must be above 0"),
        },
    ),
    "PipeSGD": Door(
        lambda model, optimizer, **more: gradwire.PipeSGD(
            model, optimizer, **{"group": gradwire.loopback(1)[0], **more}
        ),
        options={
            **PIPELINES,
            "max_norm": ("1", "max_norm must be a number above 0, or None for no clipping, but is '1'"),
            "timeout_s": (-1, "timeout_s must be above 0"),
            "plan": (8, "plan must be a Plan, a codec, its spec or the path of a plan's file, but is 8"),
            "group": (
                "gloo",
                "group must be a group of torch.distributed|torch.distributed is not initialised",
            ),
        },
    ),
    "Server": Door(
        lambda model, optimizer, **more: Server(
            model, optimizer, **{"plan": STAR, "group": _links(2)[0], **more}
        ),
        steps=False,
        options={**SERVERS, "plan": (7, "plan must be a Plan, a codec, .* but is 7")},
    ),
    "StaleServer": Door(
        lambda model, optimizer, staleness=1, **more: StaleServer(
            model, optimizer, STAR, staleness, group=_links(2)[0], **more
        ),
        steps=False,
        options={**SERVERS, "staleness": (1.5, r"the staleness must be a whole number .* but is 1\.5")},
    ),
    "Worker": Door(
        lambda model, _=None, **more: Worker(model, STAR, group=_links(2)[1], **more),
        has_optimizer=False,
        options=SERVERS,
    ),
    "StaleWorker": Door(
        lambda model, _=None, **more: StaleWorker(model, STAR, 1, group=_links(2)[1], **more),
        has_optimizer=False,
        options=SERVERS,
    ),
}
STEPPING = [name for name, door in DOORS.items() if door.steps]
ALONE = [name for name in STEPPING if DOORS[name].has_optimizer]


def _model() -> nn.Module:
    return nn.Linear(3, 1)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _refuses(error: type[GradwireError], said: str) -> Any:
    return pytest.raises(error, match=f"(?s){said}")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: "resnet", SpecError, "trains a torch.nn.Module, but got 'resnet'; give it the model"),
        (lambda: nn.Linear, SpecError, "trains a torch.nn.Module, but got <class"),
        (lambda: list(_model().parameters()), SpecError, "trains a torch.nn.Module, but got .Parameter"),
        (
            lambda: _sgd(_model()),
            SpecError,
            "trains a torch.nn.Module, but got SGD .*and the optimizer after",
        ),
        (lambda: _model().double(), TensorError, "is a torch.float64 tensor .*; convert what is tr"),
        (lambda: _model().half(), TensorError, "is a torch.float16 tensor .*; convert what is tr"),
        (lambda: _model().to("meta"), TensorError, "on meta; use .*model"),
        (lambda: nn.LazyLinear(3), TensorError, "must have its shape, .* let the model run a forward pass"),
        (lambda: _model().requires_grad_(False), TensorError, "none came; is requires_grad off everywhere"),
        (lambda: nn.ReLU(), TensorError, "a model with at least one trainable parameter was wanted"),
    ],
)
def test_a_wrong_model_is_refused(
    door: str, make: Callable[[], Any], error: type[GradwireError], said: str
) -> None:
    with _refuses(error, said):
        DOORS[door].make(make(), _sgd(_model()))


@pytest.mark.parametrize("door", DOORS)
def test_a_ddp_model_is_refused_wherever_it_is(door: str) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(_model())
        for each in (model, nn.Sequential(model)):
            with _refuses(SpecError, r"whose own all-reduce would run, too; give \w+ the module inside"):
                DOORS[door].make(each, _sgd(each))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("door", [name for name, door in DOORS.items() if door.has_optimizer])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: None, "wants an optimizer of torch.optim, but got None; make one"),
        (lambda _: torch.optim.SGD, "wants an optimizer of torch.optim, but got <class"),
        (lambda model: StepLR(_sgd(model), 1), "wants an optimizer of torch.optim, but got <torch"),
        (lambda model: model, "wants an optimizer of torch.optim, but got Linear"),
        (lambda model: torch.optim.LBFGS(model.parameters()), "that of LBFGS needs a closure"),
        (
            lambda _: _sgd(_model()),
            r"2 of these .* are not the model's, .*make it from model\.parameters\(\)",
        ),
        (
            lambda model: torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(7))], lr=0.1),
            r"1 of these \(the first of shape \(7,\)\) are not the model's",
        ),
    ],
)
def test_a_wrong_optimizer_is_refused(door: str, make: Callable[[nn.Module], Any], said: str) -> None:
    model = _model()
    with _refuses(SpecError, said):
        DOORS[door].make(model, make(model))


@pytest.mark.parametrize(
    ("door", "option"), [(name, option) for name, door in DOORS.items() for option in door.options]
)
def test_a_wrong_option_is_refused(door: str, option: str) -> None:
    model, (value, said) = _model(), DOORS[door].options[option]
    with _refuses(GradwireError, said):
        DOORS[door].make(model, _sgd(model), **{option: value})


@pytest.mark.parametrize("door", ["Server", "StaleServer", "Worker", "StaleWorker"])
def test_weights_may_be_sent_by_a_spec(door: str) -> None:
    model = _model()
    made = DOORS[door].make(model, _sgd(model), weight_codec="bf16")
    assert str(made.weight_codec) == "bf16"


@pytest.mark.parametrize("door", STEPPING)
def test_a_loss_instead_of_a_function_is_refused(door: str) -> None:
    model = _model()
    method = DOORS[door].make(model, _sgd(model))
    with _refuses(SpecError, r"step calls a function that computes the loss, but got tensor.*step\(lambda"):
        method.step(model(X).sum())
    method.close()


def _with_backward(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(X).square().sum()
    torch.autograd.backward(loss)
    return loss


@pytest.mark.parametrize("door", ALONE)
@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda _: None, r"a tensor of one value, but returned None; write step\(lambda"),
        (lambda model: model(X).sum().item(), "a tensor of one value, but returned"),
        (lambda model: (model(X).sum(), 1), r"a tensor of one value, but returned \(tensor"),
        (lambda model: model(X), r"returned a tensor of shape \(2, 1\)"),
        (lambda model: model(X).sum().detach(), "this one has no graph; leave .detach"),
        (lambda model: model(X).sum() * 1j, "must return a real loss, but returned torch.complex64"),
        (_with_backward, "that was run before: leave backward to step"),
    ],
)
@pytest.mark.parametrize("bucket_nbytes", [None, 4])
def test_what_is_no_loss_is_refused_and_the_step_may_be_repeated(
    door: str, compute: Callable[[nn.Module], Any], said: str, bucket_nbytes: int | None
) -> None:
    model = _model()
    before = [each.detach().clone() for each in model.parameters()]
    plan = gradwire.Plan(bucket_nbytes=bucket_nbytes)
    more = {"plan": plan}
    method = DOORS[door].make(model, _sgd(model), **more)
    with _refuses(TensorError, said):
        method.step(lambda: compute(model))
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    method.step(lambda: model(X).sum())
    method.drain()
    assert not torch.equal(before[0], next(model.parameters()))
    method.close()


@pytest.mark.parametrize("door", ALONE)
def test_a_closed_method_says_so(door: str) -> None:
    model = _model()
    method = DOORS[door].make(model, _sgd(model))
    method.step(lambda: model(X).sum())
    method.drain()
    method.close()
    method.close()
    method.abort()
    calls = [lambda: method.step(lambda: model(X).sum()), method.synchronise]
    if door == "PipeSGD":
        calls += [method.check_replicas, lambda: method.load_state_dict({})]
    for call in calls:
        with _refuses(ExchangeError, "rank 0: this .* is closed; make a new one"):
            call()
    assert method.drain().cost.raw_nbytes == 0, "everything was applied"
    if door == "PipeSGD":
        assert method.state_dict()
        with method.evaluating():
            assert not model.training


def test_what_close_has_dropped_is_told() -> None:
    model = _model()
    pipe = gradwire.PipeSGD(model, _sgd(model), group=gradwire.loopback(1)[0])
    pipe.step(lambda: model(X).sum())
    pipe.close()
    calls: list[Callable[[], object]] = [pipe.drain, pipe.state_dict, lambda: pipe.evaluating().__enter__()]
    for call in calls:
        with _refuses(ExchangeError, "was closed with 1 gradients on their way, which are lost; call drain"):
            call()


@pytest.mark.parametrize("door", ["Server", "StaleServer"])
@pytest.mark.parametrize("steps", ["x", 1.5, -1, None])
def test_what_is_no_number_of_steps_is_refused(door: str, steps: Any) -> None:
    model = _model()
    with _refuses(SpecError, "serve takes a whole number of steps from 0 up, but got"):
        DOORS[door].make(model, _sgd(model)).serve(steps)


@pytest.mark.parametrize("state", ["x", {}, {"weight": torch.ones(1)}, None, [1]])
def test_a_foreign_state_is_refused(state: Any) -> None:
    model = _model()
    pipe = gradwire.PipeSGD(model, _sgd(model), group=gradwire.loopback(1)[0])
    with _refuses(StateError, "rank 0 wants its own state"):
        pipe.load_state_dict(state)
    pipe.close()


def test_an_optimizer_that_gets_foreign_parameters_later_is_refused() -> None:
    model = _model()
    optimizer = _sgd(model)
    with DSync(model, optimizer, group=_links(1)[0]) as method:
        method.step(lambda: model(X).sum())
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        with _refuses(SpecError, "1 of these .* are not the model's"):
            method.step(lambda: model(X).sum())
