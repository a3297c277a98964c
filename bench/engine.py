"""Compare the native engine with the exchange in Python and with Gloo's all-reduce, between two processes.

    python bench/engine.py            # two minutes

The exchanges take turns in one run. The tables show medians, and quartiles in brackets: processor seconds for
a gigabyte of floats on each rank, relative to Gloo's; milliseconds for buckets of several sizes; and a bucket
of 1 MiB while a thread of each rank is busy in Python.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from gradwire.exchange import Exchange
from gradwire.exchange.engine import VARIABLE
from gradwire.links import ProcessGroupLink
from gradwire.plan import Plan

CODECS = ["identity", "bf16", "fp8", "quantize:8", "ecsq:0.25"]
LARGE = 1 << 24
SMALL = [1 << 10, 1 << 18]
BUSY = 1 << 18
Exchanges = Mapping[str, Callable[[torch.Tensor], object]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="repeats of each measurement (15)")
    repeats = parser.parse_args().repeats
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with TemporaryDirectory() as folder:
        ranks = [
            multiprocessing.get_context("spawn").Process(target=measure, args=(rank, folder, repeats))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()


def measure(rank: int, folder: str, repeats: int) -> None:
    """Time the exchanges as one of the two ranks; rank 0 prints the tables."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(str(Path(folder, "store")), 2), rank=rank, world_size=2)
    assert dist.group.WORLD is not None
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=60.0)
    exchanges = {"Gloo": lambda bucket: dist.all_reduce(bucket)}
    for spec in CODECS:
        for engine in ("native", "python"):
            exchanges[f"{spec}, {engine}"] = exchange_of(link, spec, engine)

    def show(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    show(f"\n| exchange of {4 * LARGE >> 20} MiB | CPU s/GB | share of Gloo's | ms |\n|---|---:|---:|---:|")
    times = take_turns(exchanges, LARGE, repeats)
    gloo_s = median(cpu_s for cpu_s, _ in times["Gloo"])
    for name, each in times.items():
        cpu_s, wall_s = zip(*each, strict=True)
        share = median(cpu_s) / gloo_s
        show(f"| {name} | {median(cpu_s) / (4e-9 * LARGE):.2f} | {share:.2f} | {in_ms(wall_s)} |")
    for count in SMALL:
        show(f"\n| exchange of {4 * count >> 10} KiB | ms |\n|---|---:|")
        for name, each in take_turns(exchanges, count, 4 * repeats).items():
            show(f"| {name} | {in_ms([wall_s for _, wall_s in each])} |")
    show(f"\n| exchange of {4 * BUSY >> 10} KiB next to a busy thread | ms |\n|---|---:|")
    with busy_thread():
        for name, each in take_turns(exchanges, BUSY, 4 * repeats).items():
            show(f"| {name} | {in_ms([wall_s for _, wall_s in each])} |")
    link.close()
    dist.destroy_process_group()


def exchange_of(link: ProcessGroupLink, spec: str, engine: str) -> Callable[[torch.Tensor], object]:
    """Return an all-reduce of a bucket with a codec, by one of the engines."""
    exchange = Exchange(link, Plan.of(spec, algorithm="ring"))

    def run(bucket: torch.Tensor) -> object:
        os.environ[VARIABLE] = engine
        return exchange.all_reduce(bucket)

    return run


def take_turns(exchanges: Exchanges, count: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return the processor and wall time of each exchange in seconds, after an uncounted exchange."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in exchanges}
    values = 0.01 * torch.randn(count)
    for turn in range(repeats + 1):
        for name, run in exchanges.items():
            bucket = values.clone()
            dist.barrier()
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            run(bucket)
            taken = time.process_time() - cpu_s, time.perf_counter() - wall_s
            if turn:
                times[name].append(taken)
    return times


@contextmanager
def busy_thread() -> Iterator[None]:
    """Keep a thread busy in Python during a ``with`` block, as a training loop may be."""
    stop = threading.Event()

    def count() -> None:
        number = 0
        while not stop.is_set():
            for _ in range(1000):
                number += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def in_ms(seconds: Iterator[float] | list[float] | tuple[float, ...]) -> str:
    """Return the median, and the quartiles, in milliseconds."""
    low, middle, high = quantiles(seconds, n=4)
    return f"{1e3 * middle:.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"


if __name__ == "__main__":
    main()
