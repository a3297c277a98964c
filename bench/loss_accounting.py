"""Measure the cost of measuring every gradient's encoding error.

    python bench/loss_accounting.py

Two ranks of this machine train under DDP, with one thread each. Measuring is on in one step and off in the
next, so that both kinds of steps have the same noise. A row shows the medians of a step's processor time on
rank 0 and the ratio of the medians. Other programs disturb processor time less than wall time. Without a
residual, one step in 64 is sampled, so the cost of a run is the last column, a 64th of the difference. With a
residual, every step is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
import warnings
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs import parse
from gradwire.sync.bucket.encoding_error import EncodingErrorMeter
from gradwire.sync.ledger.lost import sampled

WORLD = 2
PLANS = ["bf16", "quantize:8", "errbound:rel=0.05", "quantize:4", "topk:0.01"]
SAMPLES_EVERY = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60, help="pairs of steps per row")
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=measure, args=(rank, folder, pairs)) for rank in range(WORLD)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()


def measure(rank: int, folder: str, pairs: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    if rank == 0:
        print(f"{'model':28} {'plan':18} {'off':>9} {'on':>9} {'on/off':>7} {'of a run':>9}")
    for name, make, batch in (
        ("wide, 8 of 3 300 000 floats", wide, 64),
        ("deep, 200 of 420 000 floats", deep, 64),
    ):
        for spec in PLANS:
            off_s, on_s, kept = step_times(make(), spec, batch, pairs)
            if rank == 0:
                share = (on_s / off_s - 1) * (1 if kept else 1 / SAMPLES_EVERY)
                times = f"{1e3 * off_s:6.2f} ms {1e3 * on_s:6.2f} ms {on_s / off_s:7.3f} {share:9.2%}"
                print(f"{name:28} {spec:18} {times}", flush=True)
    dist.destroy_process_group()


def wide() -> nn.Module:
    sizes = (784, 1600, 1000, 400, 10)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), *(nn.Linear(64, 64) for _ in range(98)), nn.Linear(64, 10))


def step_times(model: nn.Module, spec: str, batch: int, pairs: int) -> tuple[float, float, bool]:
    """Return the median seconds of steps without and with measuring, and whether residuals are used."""
    wrapped = DistributedDataParallel(model)
    attached = gradwire.attach(wrapped, gradwire.Plan(parse(spec)))
    forced = [False]
    plain: Any = EncodingErrorMeter.measures
    EncodingErrorMeter.measures = lambda self, step: forced[0]  # type: ignore[method-assign] # noqa: ARG005
    step = partial(train, wrapped, torch.randn(batch, 784))
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * (pairs + 3)):
        forced[0] = (number % 2 == 0) is (number % 4 < 2)  # on, off, off, on: neither kind is always first
        dist.barrier()
        started = time.process_time()
        step()
        if number >= 6:
            times[forced[0]].append(time.process_time() - started)
    EncodingErrorMeter.measures = plain  # type: ignore[method-assign]
    attached.close()
    return statistics.median(times[False]), statistics.median(times[True]), attached.plan.keeps_residual


def train(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    model(x).square().mean().backward()


if __name__ == "__main__":
    assert sum(map(sampled, range(6400, 12800))) == 6400 // SAMPLES_EVERY
    main()
