"""A trainer modelled on PyTorch's DDP tutorial (multigpu_torchrun.py), on the CPU.

This script doesn't use gradwire: torchrun --nproc-per-node 2 bench/profiled/ddp_example.py
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as in the tutorial
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

WIDTH = 1024


class MyTrainDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random inputs, and targets computed from them."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(size, WIDTH, generator=generator)
        self.targets = self.inputs @ torch.randn(WIDTH, 10, generator=generator) / WIDTH**0.5

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class Trainer:
    """A trainer of a model on this rank's part of the data."""

    def __init__(
        self,
        model: nn.Module,
        train_data: DataLoader[tuple[torch.Tensor, torch.Tensor]],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.rank = int(os.environ["RANK"])
        self.train_data, self.optimizer, self.model = train_data, optimizer, DDP(model)

    def _run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(source), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def train(self, epochs: int) -> None:
        """Train for this many epochs."""
        for epoch in range(epochs):
            sampler = self.train_data.sampler
            assert isinstance(sampler, DistributedSampler)
            sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                self._run_batch(source, targets)
            print(f"[rank {self.rank}] epoch {epoch} | steps {len(self.train_data)}", flush=True)


def main() -> None:
    """Train the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int, nargs="?", default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    words = parser.parse_args()
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    world = int(os.environ["WORLD_SIZE"])
    train_set = MyTrainDataset(10 * world * words.batch_size)
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(train_set, words.batch_size, sampler=DistributedSampler(train_set))
    Trainer(model, loader, optimizer).train(words.total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    main()
