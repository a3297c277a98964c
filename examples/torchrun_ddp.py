"""Digits with DistributedDataParallel: torchrun --nproc_per_node=2 examples/torchrun_ddp.py."""

from __future__ import annotations

import argparse
import hashlib

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

TRAIN, BATCH = 1536, 64


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1797 images of 8 x 8 as float32 (1797, 64) from 0 to 1, and their digits."""
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def digest(model: nn.Module) -> str:
    """Return a short hash of the weights, to compare ranks bit for bit."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    return hashlib.sha256(flat.tobytes()).hexdigest()[:16]


def main() -> None:
    """Train, and print loss, accuracy, and gradwire's summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", default="fp8", help="a codec, or the file of a plan")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    attached = gradwire.attach(model, options.plan)  # the line that adds gradwire

    x, y = digits()
    mine = slice(rank, TRAIN, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(options.epochs):
        for images, labels in zip(x[mine].split(BATCH), y[mine].split(BATCH), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    if rank == 0:
        accuracy = (model.module(x[TRAIN:]).argmax(1) == y[TRAIN:]).float().mean().item()
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {accuracy:.3f}")
        print(attached.ledger.summary())
    print(f"rank {rank}: weights {digest(model)}")
    attached.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
