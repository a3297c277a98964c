"""Compare numbers of lanes with plain DDP, for a gradient in 16 buckets, on the hosts of a testbed.

    gradwire testbed run --hosts 2 --rate 200mbit --delay 25ms -- python bench/lanes.py     # two minutes

Each variant trains a block of steps, and the blocks take turns, because TCP sends slowly after it was idle.
The table shows the milliseconds of a backward pass on rank 0: medians, and quartiles in brackets.
"""

from __future__ import annotations

import argparse
import time
from statistics import quantiles

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

BUCKETS = 16
COUNT = 1 << 18
"""The number of floats of each bucket, 1 MiB."""
SKIPPED = 3
"""The number of uncounted steps at the start of a block."""


class Quadratic(nn.Module):
    """Parameters of one bucket each, whose backward pass takes almost no time."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(0.01 * torch.randn(COUNT)) for _ in range(BUCKETS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of squares times ``x``."""
        return torch.stack([(part * part).sum() for part in self.parts]).sum() * x


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codecs", nargs="+", default=["fp8", "ecsq:0.25"], help="codecs (fp8 ecsq:0.25)")
    parser.add_argument("--lanes", nargs="+", type=int, default=[1, 4, 16], help="numbers of lanes (1 4 16)")
    parser.add_argument("--turns", type=int, default=3, help="blocks of each variant (3)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block that are counted (10)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    models = {"plain DDP": wrapped()}
    for codec in options.codecs:
        for lanes in options.lanes:
            name = f"`{codec}`, lanes: {lanes}"
            models[name] = wrapped()
            gradwire.attach(models[name], gradwire.Plan(gradwire.parse(codec), lanes=lanes))
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.turns):
        for name, model in models.items():
            times[name] += block(model, options.steps + SKIPPED)[SKIPPED:]
    if dist.get_rank() == 0:
        print(f"\n| {BUCKETS} buckets of {4 * COUNT >> 20} MiB | ms |\n|---|---:|")
        for name, each in times.items():
            low, middle, high = (1e3 * value for value in quantiles(each, n=4))
            print(f"| {name} | {middle:.0f} ({low:.0f} to {high:.0f}) |", flush=True)
    dist.destroy_process_group()


def wrapped() -> DistributedDataParallel:
    """Return a new model, whose parameters have a bucket each."""
    return DistributedDataParallel(Quadratic(), bucket_cap_mb=4 * COUNT / (1 << 20))


def block(model: DistributedDataParallel, steps: int) -> list[float]:
    """Return the seconds of each step's backward pass, which all ranks begin together."""
    taken = []
    for _ in range(steps):
        model.zero_grad()
        loss = model(torch.ones(1))
        dist.barrier()
        began = time.perf_counter()
        loss.backward()
        taken.append(time.perf_counter() - began)
    return taken


if __name__ == "__main__":
    main()
