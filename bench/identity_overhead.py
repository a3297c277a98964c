"""Measure gradwire's overhead without a codec: `attach(model, "identity")` against plain DDP, in pairs.

    python bench/identity_overhead.py --data-dir DIR    # root or user namespaces, ip, tc; five minutes
    python bench/identity_overhead.py --tasks mnist-mlp --pairs 30

Four hosts of a testbed train the same model with both methods, alternating block by block, so that other
programs on the machine affect both methods equally. The output is the median ratio of the two step times over
all pairs, with a 95 % interval from resampling the pairs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import gradwire
from gradwire_lab.experiments.hosts import run_on_hosts
from gradwire_lab.experiments.hosts.ranks import met_ranks
from gradwire_lab.experiments.methods import ComparedOnDDP
from gradwire_lab.experiments.tasks import TASKS, Files
from gradwire_lab.testbed.registry import KEPT_MEMORY

RESAMPLED = 2000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", default="mnist-mlp,wide-mlp")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument(
        "--data-dir", type=Path, help="folder of MNIST's four files; by default, scikit-learn's digits"
    )
    parser.add_argument("--plan", default="identity", help="a codec, or the file of a plan")
    words = parser.parse_args()
    if words.as_rank:
        measure_here(words)
        return
    folder = ["--data-dir", str(words.data_dir.absolute())] if words.data_dir else []
    for task in words.tasks.split(","):
        told = ["--tasks", task, "--pairs", str(words.pairs), "--plan", words.plan, *folder]
        run_on_hosts(
            words.hosts, words.rate, [sys.executable, __file__, "--as-rank", *told], report, KEPT_MEMORY
        )


def measure_here(words: argparse.Namespace) -> None:
    """Time pairs of blocks as one rank of this process's network."""
    with met_ranks() as ranks:
        tasks = [TASKS[words.tasks](ranks.rank, ranks.world, Files(words.data_dir)) for _ in range(2)]
        hooked = ComparedOnDDP(tasks[1], lambda ddp: gradwire.attach(ddp, words.plan))
        ways = [ComparedOnDDP(tasks[0]), hooked]
        block = max(tasks[0].block // 2, 2)
        for way in ways:
            way.train(block)  # untimed: DDP connects and rebuilds buckets
        pairs = []
        for number in range(words.pairs):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            seconds = dict.fromkeys(order, 0.0)
            for each in order:
                dist.barrier()
                began = time.perf_counter()
                ways[each].train(block)
                spent_s = torch.tensor([(time.perf_counter() - began) / block], dtype=torch.float64)
                dist.all_reduce(spent_s, dist.ReduceOp.MAX)
                seconds[each] = float(spent_s)
            pairs.append((seconds[0], seconds[1]))
        for way in ways:
            way.close()
        ranks.report({"task": tasks[0].name}, {"pairs": pairs})


def report(run: Mapping[str, Any]) -> None:
    """Print the result of one task."""
    ratios = [attached_s / ddp_s for ddp_s, attached_s in run["pairs"]]
    draw = random.Random(1)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    low, high = medians[RESAMPLED // 40], medians[-RESAMPLED // 40]
    ddp_s, attached_s = (median(times) for times in zip(*run["pairs"], strict=True))
    print(
        f"{run['task']}: DDP {1e3 * ddp_s:.1f} ms a step, attached {1e3 * attached_s:.1f} ms; "
        f"{median(ratios):.3f} times as long, 95 % interval {low:.3f} to {high:.3f} ({len(ratios)} pairs)",
        flush=True,
    )


if __name__ == "__main__":
    main()
