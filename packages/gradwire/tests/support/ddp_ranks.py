"""What the processes of DDP's tests run; apart from the tests, since a process finds it by its module."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradwire
from gradwire.errors import GradwireError
from support.saved_residuals import residuals_in

SMALL_BUCKETS: dict[str, Any] = {"bucket_cap_mb": 0.002}
EXACT = gradwire.Plan()


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(7)
    sizes = (32, 64, 64, 64, 10)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers).to(dtype)


def make_wide() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(32, 1024), nn.Tanh(), nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 10))


class Branches(nn.Module):
    """One branch is taken by even ranks, one by odd ones, one by nobody."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.head, self.even, self.odd, self.never = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.odd if dist.get_rank() % 2 else self.even
        out: torch.Tensor = branch(self.head(x))
        return out


class Checkpointed(nn.Module):
    """Computes its middle again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.rest, self.reentrant = nn.Linear(32, 32), make_model(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.rest, self.first(x), use_reentrant=self.reentrant)
        return out


def batch(step: int, rank: int | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    seed = 1000 * step + (dist.get_rank() if rank is None else rank)
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)


def loss_of(model: nn.Module, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out: torch.Tensor = model(batch(step, dtype=dtype)).square().mean()
    return out


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def train(
    model: nn.Module, steps: Iterable[int], accumulate: int = 1, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Train with momentum; every update is of ``accumulate`` batches, all but the last under ``no_sync``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        for part in range(accumulate):
            quiet = model.no_sync() if part + 1 < accumulate else contextlib.nullcontext()  # type: ignore[operator]
            with quiet:
                loss_of(model, accumulate * step + part, dtype).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)


Maker = Callable[[], nn.Module]


def both(
    make: Maker, options: dict[str, Any], plan: Any, steps: int, accumulate: int = 1
) -> dict[str, torch.Tensor]:
    """Train the same model with DDP's own all-reduce and with gradwire's; return the weights of both."""
    plain = train(DistributedDataParallel(make(), **options), range(steps), accumulate)
    model = DistributedDataParallel(make(), **options)
    attached = gradwire.attach(model, plan)
    ours = train(model, range(steps), accumulate)
    summary = attached.ledger.summary()
    attached.close()
    return {
        "plain": plain,
        "ours": ours,
        "buckets": torch.tensor(len(summary.buckets)),
        "steps": torch.tensor(summary.steps),
        "bypasses": torch.tensor(len(summary.bypasses)),
    }


def dense(options: dict[str, Any], plan: Any, steps: int) -> dict[str, torch.Tensor]:
    return both(make_model, {**SMALL_BUCKETS, **options}, plan, steps)


def accumulated() -> dict[str, torch.Tensor]:
    return both(make_model, SMALL_BUCKETS, EXACT, 5, accumulate=3)


def checkpointed(reentrant: bool, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    def make() -> nn.Module:
        torch.manual_seed(7)
        return Checkpointed(reentrant)

    return both(make, {**SMALL_BUCKETS, **options}, EXACT, 4)


def unused(options: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients of two steps in which ranks use different branches, plainly averaged and by us."""
    found: dict[str, Any] = {}
    for name in ("plain", "ours"):
        model = DistributedDataParallel(Branches(), **SMALL_BUCKETS, **options)
        attached = gradwire.attach(model, EXACT) if name == "ours" else None
        for step in range(3):
            model.zero_grad()
            loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        found[name] = gradients(model)
        if attached is not None:
            attached.close()
    return found


def half(dtype: torch.dtype, plan: Any) -> dict[str, Any]:
    """Return the first step's local gradients and averaged ones, and the weights after some steps."""
    local = make_model(dtype)
    loss_of(local, 0, dtype).backward()  # type: ignore[no-untyped-call]
    model = DistributedDataParallel(make_model(dtype), **SMALL_BUCKETS)
    attached = gradwire.attach(model, plan)
    loss_of(model, 0, dtype).backward()  # type: ignore[no-untyped-call]
    found: dict[str, Any] = {"local": gradients(local), "averaged": gradients(model)}
    found["weights"] = [train(model, range(4), dtype=dtype)]
    found["bypasses"] = list(attached.ledger.summary().bypasses.values())
    attached.close()
    return found


def compiled(backend: str, outside: bool) -> dict[str, torch.Tensor]:
    """Train with the compiler around DDP, or DDP around the compiled module, in buckets that dynamo takes."""
    plain = train(DistributedDataParallel(make_wide(), bucket_cap_mb=1), range(4))
    if outside:
        wrapped = DistributedDataParallel(make_wide(), bucket_cap_mb=1)
        trained: Any = torch.compile(wrapped, backend=backend)
    else:
        trained = wrapped = DistributedDataParallel(
            torch.compile(make_wide(), backend=backend), bucket_cap_mb=1
        )
    attached = gradwire.attach(wrapped, EXACT, timeout_s=60)
    ours = train(trained, range(4))
    summary = attached.ledger.summary()
    attached.close()
    counts = {"steps": torch.tensor(summary.steps), "buckets": torch.tensor(len(summary.buckets))}
    return {"plain": plain, "ours": ours, **counts}


def two_models() -> list[dict[str, torch.Tensor]]:
    """Train a model that feeds another in one backward pass, beside one that is alone."""
    found: list[dict[str, torch.Tensor]] = []
    for ours in (False, True):
        torch.manual_seed(3)
        first, second = (
            DistributedDataParallel(nn.Linear(32, 32)),
            DistributedDataParallel(make_model(), **SMALL_BUCKETS),
        )
        attached = [gradwire.attach(each, EXACT) for each in (first, second)] if ours else []
        chain = nn.Sequential(first, second)
        optimizer = torch.optim.SGD(chain.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(chain, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append({"chain": weights(chain), "alone": train(second, range(2))})
        for each in attached:
            each.close()
    return found


def subgroup(members: list[int]) -> dict[str, torch.Tensor] | None:
    """Train on some of the ranks only."""
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        dist.barrier()
        return None
    found = both(make_model, {**SMALL_BUCKETS, "process_group": group}, EXACT, 4)
    dist.barrier()
    return found


def uneven(options: dict[str, Any], by_all: bool, dtype: torch.dtype) -> list[torch.Tensor]:
    """Train, plainly and by us, where every rank has two batches fewer than the one before."""
    found = []
    for ours in (False, True):
        model = DistributedDataParallel(make_model(dtype), **SMALL_BUCKETS, **options)
        attached = gradwire.attach(model, EXACT) if ours else None
        with model.join(divide_by_initial_world_size=by_all):
            train(model, range(5 - 2 * dist.get_rank()), dtype=dtype)
        found.append(weights(model))
        if attached is not None:
            attached.close()
    return found


def loaded_apart() -> list[str]:
    """Change one rank's weights after DDP has made them equal; compare them now, and in the next step."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, EXACT)
    attached.check_replicas()
    train(model, range(2))
    attached.check_replicas()
    said = []
    if dist.get_rank() == 1:
        with torch.no_grad():
            next(model.parameters()).view(-1)[3] += 2**-20
    for compare in (attached.check_replicas, lambda: loss_of(model, 3).backward()):  # type: ignore[no-untyped-call]
        attached.check_at_next_step()
        try:
            compare()
        except GradwireError as error:
            said.append(f"{type(error).__name__}: {error}")
    attached.close()
    return said


def residuals(plan: gradwire.Plan, steps: int) -> dict[str, torch.Tensor]:
    """Sum what went in and what came out, at the same weights; halfway all is saved and made anew."""
    model, attached = _fresh(plan)
    into, out, cuts = torch.zeros(0), torch.zeros(0), []
    for step in range(steps):
        if step == steps // 2:
            state = attached.state_dict()
            cuts.append(len(attached.ledger.summary().buckets))
            attached.close()
            model, attached = _fresh(plan)
            attached.load_state_dict(state)
        local = make_model()
        loss_of(local, step).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        into = _added(into, local)
        out = _added(out, model)
    state = attached.state_dict()
    attached.close()
    left = [residuals_in(state)[name] for name, _ in make_model().named_parameters()]
    return {"into": into, "out": out, "left": torch.cat(left).double(), "cuts": torch.tensor(cuts)}


def _fresh(plan: gradwire.Plan) -> tuple[DistributedDataParallel, Any]:
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    return model, gradwire.attach(model, plan)


def _added(total: torch.Tensor, model: nn.Module) -> torch.Tensor:
    flat = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None]).double()
    return flat if total.numel() == 0 else total + flat


def builtin_hooks() -> dict[str, list[torch.Tensor | None]]:
    """Return one step's gradients by torch's hooks and by ours with codecs that say the same."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    found = {}
    for name in ("none", "allreduce", "fp16", "builtin fp16", "identity", "codec fp16"):
        model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
        if name == "allreduce":
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        elif name == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif name == "builtin fp16":
            model._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[no-untyped-call]
        elif name != "none":
            gradwire.attach(model, name.removeprefix("codec "))
        for step in range(2):
            model.zero_grad()
            loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        found[name] = gradients(model)
    return found


def known_average() -> tuple[list[float], list[float]]:
    """Return the gradients of a weight whose gradient on rank r is r + 1, in four steps."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x

    model = DistributedDataParallel(Scale())
    gradwire.attach(model, EXACT)
    lows, highs = [], []
    for _ in range(4):
        model.zero_grad()
        model(torch.full((2, 2), dist.get_rank() + 1.0)).sum().backward()
        lows.append(float(model.module.weight.grad.min()))
        highs.append(float(model.module.weight.grad.max()))
    return lows, highs


def attach_with(plans: list[Any], timeout_s: float = 20.0) -> tuple[str, str] | None:
    """Attach with this rank's own plan ("absent": not at all); return the error's class and text."""
    plan = plans[dist.get_rank()]
    model = DistributedDataParallel(make_model())
    found = None
    if plan != "absent":
        try:
            gradwire.attach(model, plan, timeout_s=timeout_s).close()
        except GradwireError as error:
            found = type(error).__name__, str(error)
    dist.barrier()  # an absent rank is still there
    return found


def lose_a_peer(how: str, options: dict[str, Any], bad_step: int, plan: Any) -> dict[str, Any]:
    """Train while the last rank leaves, or stands still, in the backward pass of ``bad_step``."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS, **options)
    attached = gradwire.attach(model, plan, timeout_s=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def leave(_: torch.Tensor) -> None:
        if how == "dies":
            os._exit(0)
        time.sleep(30)

    for step in range(bad_step):
        optimizer.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    kept, state = weights(model), attached.state_dict()
    if rank == world - 1:
        model.module[4].weight.register_hook(leave)
    loss = loss_of(model, bad_step)
    began, errors = time.monotonic(), []
    for attempt in (loss.backward, lambda: loss_of(model, bad_step), lambda: loss_of(model, bad_step)):
        try:
            attempt()
        except BaseException as error:
            errors.append((type(error).__name__, str(error), time.monotonic() - began))
            began = time.monotonic()
    with torch.no_grad():
        evaluated = bool(model.module(batch(0)).isfinite().all())
        evaluated = evaluated and bool(model(batch(0)).isfinite().all())
    return {
        "errors": errors,
        "same weights": torch.equal(kept, weights(model)),
        "same state": str(state) == str(attached.state_dict()),
        "evaluated": evaluated,
    }
