"""Training that continues after a rank dies: torchrun restarts all ranks, and each loads its own state.

torchrun --nproc-per-node=2 --max-restarts=3 examples/elastic_restart.py --folder checkpoints --die-at 7

This command makes rank 1 kill itself once, before step 7. The final weights are bit-identical to those of
a run without ``--die-at``. On several hosts, the folder must be shared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradwire

EVERY = 3  # steps between two checkpoints


Parts = dict[str, Any]  # all have state_dict and load_state_dict
Step = Callable[[torch.Tensor], object]


def begin() -> None:
    """Create the process group of this attempt.

    torchrun's store keeps the keys of earlier attempts, including the addresses of dead processes, and torch
    2.13 reads them again. A separate prefix per attempt avoids this.
    """
    limit = timedelta(seconds=60)
    store, rank, world = next(rendezvous("env://", timeout=limit))
    own = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=world, timeout=limit)


def save(folder: Path, steps_done: int, parts: Parts) -> None:
    """Write this rank's file; once all ranks have written theirs, record the step in ``last.pt``."""
    state = {name: part.state_dict() for name, part in parts.items()}
    gradwire.save_checkpoint(_file(folder, steps_done), state)
    dist.barrier()
    if dist.get_rank() == 0:
        gradwire.save_checkpoint(folder / "last.pt", {"steps_done": steps_done})
    dist.barrier()  # until last.pt is written, no rank may continue: its failure would end rank 0


def load(folder: Path, parts: Parts) -> int:
    """Load the last complete checkpoint into all parts; return its number of steps, or 0 without one.

    A damaged file is an error. Then replicas compare their weights and optimizer states, because a rank must
    not continue if it loaded a different file than the other ranks.
    """
    last = folder / "last.pt"
    steps_done = [gradwire.load_checkpoint(last)["steps_done"] if last.exists() else 0]
    dist.broadcast_object_list(steps_done)  # all ranks get rank 0's value
    if steps_done[0]:
        state = gradwire.load_checkpoint(_file(folder, steps_done[0]))
        for name, part in parts.items():
            part.load_state_dict(state[name])
        if not isinstance(parts["model"], FSDPModule):  # shards differ from rank to rank
            parts["gradwire"].check_replicas()
    return steps_done[0]


def _file(folder: Path, steps_done: int) -> Path:
    return folder / f"step{steps_done}-rank{dist.get_rank()}.pt"


def make_model() -> nn.Sequential:
    """Return a small model, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))


def batch(step: int) -> torch.Tensor:
    """Return this rank's batch of a step; a sampler with a state of its own must also be saved."""
    return torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the loss of the model, which learns to add."""
    return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


def with_ddp(model: nn.Module) -> tuple[Parts, Step, Callable[[], None]]:
    """Return the state to save (with residuals), the step function, and the closing function, for DDP."""
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # DDP rebuilds its buckets after the first backward pass. After this pass, a restarted run has the same
    # buckets.
    loss_of(wrapped, batch(0)).backward()
    attached = gradwire.attach(wrapped, "topk:0.1", optimizer=optimizer, check_replicas_every=EVERY)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(wrapped, x).backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer, "gradwire": attached}, step, attached.close


def with_pipe(model: nn.Module) -> tuple[Parts, Step, Callable[[], None]]:
    """Return the state to save (with gradients in flight), the step function, and the closing function."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    pipe = gradwire.PipeSGD(model, optimizer, "topk:0.1")

    def step(x: torch.Tensor) -> None:
        pipe.step(lambda: loss_of(model, x))

    def end() -> None:
        pipe.drain()
        pipe.close()

    return {"model": model, "optimizer": optimizer, "gradwire": pipe}, step, end


def with_fsdp(model: nn.Module) -> tuple[Parts, Step, Callable[[], None]]:
    """Return the state to save (with this rank's shards), the step function, and the closing function."""
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    attached = gradwire.attach_fsdp(model, "topk:0.1")

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer, "gradwire": attached}, step, attached.close


def whole_weights(model: nn.Module) -> torch.Tensor:
    """Return all weights in one vector, gathered if they are sharded."""
    parameters = (each.detach() for each in model.parameters())
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in parameters]
    return torch.cat([each.flatten() for each in whole])


def train(folder: Path, method: str, steps: int, die_at: int | None = None) -> str:
    """Train from the last checkpoint up to step ``steps``; return a hash of the weights."""
    model = make_model()
    parts, step, end = {"ddp": with_ddp, "pipe": with_pipe, "fsdp": with_fsdp}[method](model)
    done = load(folder, parts)
    print(f"rank {dist.get_rank()} begins after step {done}", flush=True)
    for number in range(done + 1, steps + 1):
        if number == die_at and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step(batch(number))
        if number % EVERY == 0:
            save(folder, number, parts)
    end()
    return hashlib.sha256(whole_weights(model).numpy().tobytes()).hexdigest()


def main() -> None:
    """Parse the options, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("checkpoints"), help="shared folder of the checkpoints"
    )
    parser.add_argument("--method", choices=["ddp", "pipe", "fsdp"], default="ddp")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--die-at", type=int, help="the step before which rank 1 kills itself, once")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    begin()
    weights = train(options.folder, options.method, options.steps, options.die_at if first else None)
    print(f"rank {dist.get_rank()} ends with weights {weights}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
