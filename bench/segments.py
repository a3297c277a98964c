"""Compare equations 5 and 6 of Pipe-SGD: one bucket that leaves after backward, and buckets during backward.

    gradwire testbed run --hosts 2 --rate 400mbit -- python bench/segments.py       # two minutes

Each variant trains a block of steps, and the blocks take turns. Rank 0 prints the milliseconds of a step:
medians, and quartiles in brackets. The last column is the time by the variant's equation, from parts that the
same run measures: a step without an exchange, and each bucket's exchange without computation. Equation 6 is
computed with the whole backward pass, because a processor computes the whole pass in every step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.local import DSync
from gradwire.plan import bucket_members

SKIPPED = 4
"""The number of uncounted steps at the start of a block, in which a pipeline fills."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codec", default="identity", help="codec (identity)")
    parser.add_argument("--bucket", type=int, default=1 << 20, help="bytes of a bucket (1048576)")
    parser.add_argument("--hidden", type=int, default=512, help="neurons of each of six layers (512)")
    parser.add_argument("--batch", type=int, default=256, help="samples of each rank (256)")
    parser.add_argument("--turns", type=int, default=4, help="blocks of each variant (4)")
    parser.add_argument("--steps", type=int, default=8, help="steps of a block that are counted (8)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    counts = [each.numel() for each in mlp(options.hidden).parameters()]
    buckets = [sum(counts[each] for each in members) for members in bucket_members(counts, options.bucket)]
    whole, cut = (
        gradwire.Plan(gradwire.parse(options.codec), pipeline=2, bucket_nbytes=nbytes)
        for nbytes in (None, options.bucket)
    )
    x = torch.randn(options.batch, options.hidden, generator=torch.Generator().manual_seed(dist.get_rank()))

    def steps_of(model: nn.Module, method: gradwire.PipeSGD | DSync) -> Callable[[], list[float]]:
        return lambda: block(lambda: method.step(lambda: model(x).square().mean()), options.steps, method)

    models = [mlp(options.hidden) for _ in range(5)]
    made = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    pipes = [
        gradwire.PipeSGD(model, optimizer, plan, correction="none")
        for model, optimizer, plan in zip(models, made, (whole, cut), strict=False)
    ]
    syncs = [
        DSync(model, optimizer, plan)
        for model, optimizer, plan in zip(models[2:], made[2:], (whole, cut), strict=False)
    ]
    names = [f"{each}, {count}" for each in ("K = 2", "K = 1") for count in ("one bucket", "buckets")]
    methods: list[gradwire.PipeSGD | DSync] = [*pipes, *syncs]
    blocks = {
        name: steps_of(model, method) for name, model, method in zip(names, models, methods, strict=False)
    }
    blocks["no exchange"] = lambda: block(lambda: alone(models[4], made[4], x), options.steps)
    times: dict[str, list[float]] = {name: [] for name in blocks}
    exchanges: dict[str, list[float]] = {"one bucket": [], "buckets": []}
    for turn in range(options.turns):
        for name, run in blocks.items():
            times[name] += run()
            if dist.get_rank() == 0:
                print(f"turn {turn + 1}, {name}: {1e3 * median(times[name]):.1f} ms a step", flush=True)
        exchanges["one bucket"].append(exchange_s(pipes[0], [sum(counts)]))
        exchanges["buckets"].append(exchange_s(pipes[1], buckets))
    if dist.get_rank() == 0:
        report(times, exchanges, len(buckets))
    for method in (*pipes, *syncs):
        method.close()
    dist.destroy_process_group()


def mlp(width: int) -> nn.Sequential:
    """Return a model of six equal layers."""
    return nn.Sequential(*(each for _ in range(6) for each in (nn.Linear(width, width), nn.Tanh())))


def alone(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Train on one batch without an exchange."""
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()


def block(
    step: Callable[[], object], steps: int, method: gradwire.PipeSGD | DSync | None = None
) -> list[float]:
    """Return the seconds of consecutive steps, which all ranks begin together."""
    dist.barrier()
    for _ in range(SKIPPED):
        step()
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    if method is not None:
        method.drain()
    return taken


def exchange_s(method: gradwire.PipeSGD, counts: Sequence[int]) -> float:
    """Return the seconds of exchanging buckets one after the other, without computation."""
    buckets = [torch.randn(count) for count in counts]
    dist.barrier()
    began = time.perf_counter()
    for each in buckets:
        method.exchange.all_reduce(each)
    return time.perf_counter() - began


def report(times: dict[str, list[float]], exchanges: dict[str, list[float]], count: int) -> None:
    """Print the table, and the ratios."""
    compute_s = median(times["no exchange"])
    comm_s = {name: median(each) for name, each in exchanges.items()}
    equations = {
        "K = 2, one bucket": ("5", max(compute_s, comm_s["one bucket"])),
        "K = 2, buckets": ("6", max(compute_s, comm_s["buckets"])),
        "K = 1, one bucket": ("2", compute_s + comm_s["one bucket"]),
    }
    print(f"\n| variant ({count} buckets) | ms a step | equation | ms by the equation |\n|---|---:|---|---:|")
    for name, each in times.items():
        low, middle, high = (1e3 * value for value in quantiles(each, n=4))
        number, expected_s = equations.get(name, ("", 0.0))
        expected = f"{1e3 * expected_s:.1f}" if number else ""
        print(f"| {name} | {middle:.1f} ({low:.1f} to {high:.1f}) | {number} | {expected} |")
    five, six = (median(times[f"K = 2, {name}"]) for name in ("one bucket", "buckets"))
    one, more = (median(times[f"K = 1, {name}"]) for name in ("one bucket", "buckets"))
    print(f"\nCommunication takes {comm_s['one bucket'] / compute_s:.2f} times as long as computation.")
    print(
        f"Buckets over one bucket: {six / five:.3f} with K = 2 (equation 6 over 5), "
        f"{more / one:.3f} with K = 1"
    )


if __name__ == "__main__":
    main()
