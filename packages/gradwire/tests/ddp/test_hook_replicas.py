"""Replicas that differ in a weight or in an optimizer's state are named, now or within N steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Plan
from gradwire.errors import GradwireError
from gradwire.plan import PlanLike

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=1e-2, max_iter=2),
}


class Apart(nn.Module):
    """``own`` and its buffer are each rank's own, as an embedding of TorchRec; ``head`` is everyone's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.own = nn.Linear(4, 4)
        self.register_buffer("seen", torch.full((3,), float(dist.get_rank())))
        self.scale = nn.Parameter(torch.rand(1))
        torch.manual_seed(7)
        self.head = nn.Linear(4, 1)
        self._ddp_params_and_buffers_to_ignore = ["own.weight", "own.bias", "seen", ".scale", "scale"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.own(x) * self.scale).square().mean()
        return out


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.as_tensor(model(torch.randn(8, 4, generator=generator)).square().mean())


def said_by(call: Callable[[], object]) -> str:
    try:
        call()
    except GradwireError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def watched(kind: str, damaged: str, plan: PlanLike) -> list[str]:
    """Train 7 steps with a check before steps 1, 4 and 7; rank 1's state is damaged before the last.

    Returns what each step said, and a check by hand at the end.
    """
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    optimizer = OPTIMIZERS[kind](model.parameters())
    with gradwire.attach(model, plan, optimizer=optimizer, check_replicas_every=3) as attached:

        def step(number: int) -> None:
            optimizer.zero_grad()
            loss_of(model, number).backward()  # type: ignore[no-untyped-call]
            optimizer.step(lambda: 0.0)

        said = []
        for number in range(1, 8):
            said.append(said_by(lambda number=number: step(number)))  # type: ignore[misc]
            if number == 6 and dist.get_rank() == 1:
                damage(model, optimizer, damaged)
        said += [said_by(attached.check_replicas)]
    return said


def damage(model: nn.Module, optimizer: torch.optim.Optimizer, what: str) -> None:
    """Change one bit of a weight, or of something that the optimizer keeps."""
    *_, last = model.parameters()
    if what == "weights":
        flip(last.data)
    elif what == "lr":
        optimizer.param_groups[0]["lr"] *= 1 + 2**-50
    else:
        first = next(iter(optimizer.state.values()))
        found = first[what] if what in first else optimizer.state[last][what]
        flip(found[0] if isinstance(found, list) else found)


def flip(values: torch.Tensor) -> None:
    values.view(-1).view(torch.int32)[-1:].bitwise_xor_(1)


def named_by_hand() -> list[str]:
    """Compare the states of an optimizer that ``attach`` was not told of, before and after damage."""
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with gradwire.attach(model, "identity") as attached:
        loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        said = [said_by(lambda: attached.check_replicas(optimizer=optimizer))]
        if dist.get_rank() == 0:
            damage(model, optimizer, "exp_avg_sq")
        said += [said_by(attached.check_replicas), said_by(lambda: attached.check_replicas(optimizer))]
    return said


def ignored() -> list[str]:
    """Train a model with parameters of each rank's own; check in every way; then damage what is shared."""
    model = DistributedDataParallel(Apart())
    optimizer = torch.optim.AdamW(model.parameters())
    said = []
    with gradwire.attach(model, "identity", optimizer=optimizer, check_replicas_every=1) as attached:
        for number in range(3):
            attached.check_at_next_step() if number == 1 else None
            optimizer.zero_grad()
            loss_of(model, number).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            said.append(said_by(attached.check_replicas))
        if dist.get_rank() == 1:
            flip(model.module.head.weight.data)
        said.append(said_by(attached.check_replicas))
        said.append(said_by(lambda: loss_of(model, 4).backward()))  # type: ignore[no-untyped-call]
    return said


def joined() -> str:
    """Train where rank 1 runs out of batches first, and check before every step."""
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with gradwire.attach(model, "identity", optimizer=optimizer, check_replicas_every=1), model.join():
        for number in range(5 - 2 * dist.get_rank()):
            optimizer.zero_grad()
            loss_of(model, number).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return "done"


def told_apart() -> str:
    """Attach with another number of steps on rank 1."""
    model = DistributedDataParallel(nn.Linear(4, 1))
    return said_by(lambda: gradwire.attach(model, "identity", check_replicas_every=1 + dist.get_rank()))


RunProcesses = Callable[..., list[Any]]
DIFFER = "StateError: expected bit-identical replicas, but the"
pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("kind", "damaged", "plan"),
    [
        ("adamw", "exp_avg", "identity"),
        ("adamw", "exp_avg_sq", "topk:0.5"),
        ("adamw", "step", "identity"),
        ("adamw", "lr", Plan(algorithm="backend")),
        ("sgd", "momentum_buffer", "auto"),
        ("lbfgs", "d", "identity"),
        ("adamw", "weights", "identity"),
    ],
)
def test_one_flipped_bit_ends_the_run_on_all_ranks_at_the_next_check(
    kind: str, damaged: str, plan: PlanLike, run_processes: RunProcesses
) -> None:
    what = "weights" if damaged == "weights" else "optimizer states"
    for said in run_processes(2, watched, kind, damaged, plan):
        assert said[:6] == [""] * 6
        for each in said[6:]:
            assert each.startswith(f"{DIFFER} {what} of rank 1 differ from those of rank 0; "), said


def test_an_optimizer_may_be_named_when_replicas_are_compared(run_processes: RunProcesses) -> None:
    for unharmed, of_weights, of_both in run_processes(3, named_by_hand):
        assert unharmed == of_weights == ""
        assert of_both.startswith(f"{DIFFER} optimizer states of rank 0 differ from those of rank 1;")


def test_what_ddp_ignores_may_differ_and_the_rest_may_not(run_processes: RunProcesses) -> None:
    for said in run_processes(2, ignored):
        assert said[:3] == [""] * 3
        assert all(each.startswith(f"{DIFFER} weights of rank 1 differ") for each in said[3:]), said


def test_a_rank_without_batches_under_join_is_no_false_alarm(run_processes: RunProcesses) -> None:
    assert run_processes(2, joined) == ["done"] * 2


def test_ranks_that_would_check_at_other_steps_are_refused(run_processes: RunProcesses) -> None:
    for said in run_processes(2, told_apart):
        assert said.startswith("AttachError: ")
        assert "check_replicas_every is 1 on rank 0, 2 on rank 1" in said
