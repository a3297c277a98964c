"""Measure the cost of an eager pipeline's local update, relative to the optimizer's own step.

    python bench/local_update.py                  # a minute
    python bench/local_update.py --floats 1e6,25e6 --repeats 30

A local update copies the rank's own gradient, checks that it is finite, copies the weights and the optimizer
state, and steps on the copies. ``restored`` is the alternative: save the master weights, step on them, and
copy the saved weights back. Figures are medians of interleaved repetitions, in milliseconds and relative to
an optimizer step; memory is in multiples of the weights.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from gradwire.pipe.correction import Eager
from gradwire.sync.flat.gradients import Bucket, FlatGradients
from gradwire.sync.flat.update import scheduled

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "SGD, momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}
LAYERS = 24


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--floats", default="1e6,18e6", help="numbers of model weights, separated by commas")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    words = parser.parse_args()
    torch.set_num_threads(words.threads)
    print(f"{'floats':>8}  {'optimizer':14}  {'step ms':>8}  {'local update':>20}  {'restored':>20}  memory")
    for count in words.floats.split(","):
        for name, make in OPTIMIZERS.items():
            measure(int(float(count)), name, make, words.repeats)


def measure(
    count: int, name: str, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], repeats: int
) -> None:
    """Measure an optimizer with ``count`` weights, and print the row."""
    parameters = [nn.Parameter(torch.randn(count // LAYERS)) for _ in range(LAYERS)]
    optimizer = make(parameters)
    gradients = FlatGradients(parameters)
    gradients.buffer.normal_(std=1e-3)
    eager = Eager(parameters, optimizer, 2, math.inf)
    values = scheduled(optimizer)
    whole = Bucket(0, gradients.buffer.numel(), range(LAYERS))

    def step() -> None:
        gradients.attach()
        optimizer.step()

    def local_update() -> None:
        eager.copy(gradients, whole)
        eager.note(values)
        with eager.ahead():
            pass

    own = torch.empty_like(gradients.buffer)

    def restored() -> None:
        own.copy_(gradients.buffer)
        torch.aminmax(own)
        state = [each for values in optimizer.state.values() for each in values.values()]
        tensors = [parameter.data for parameter in parameters]
        tensors += [each for each in state if isinstance(each, torch.Tensor)]
        saved = kept or [torch.empty_like(tensor) for tensor in tensors]
        kept[:] = saved
        torch._foreach_copy_(saved, tensors)
        step()
        torch._foreach_copy_(tensors, saved)

    kept: list[torch.Tensor] = []
    ways: list[Callable[[], None]] = [step, local_update, restored]
    for _ in range(2):
        for way in ways:
            way()
    spent: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, times in zip(ways, spent, strict=True):
            began = time.perf_counter()
            way()
            times.append(time.perf_counter() - began)
    step_s, local_s, restored_s = map(median, spent)
    state_floats = sum(
        each.numel()
        for values in optimizer.state.values()
        for each in values.values()
        if isinstance(each, torch.Tensor)
    )
    memory = (2 * gradients.buffer.numel() + state_floats) / gradients.buffer.numel()
    print(
        f"{count:8.0e}  {name:14}  {1e3 * step_s:8.2f}  {1e3 * local_s:8.2f} ({local_s / step_s:4.2f} steps)"
        f"  {1e3 * restored_s:8.2f} ({restored_s / step_s:4.2f} steps)  {memory:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
