"""Compare a step of `attach(model, PLAN)` with a step of plain DDP, and of DDP with its bf16 hook, in turns.

    python bench/step_ratio.py --data-dir DIR    # root or user namespaces, ip, tc; ten minutes
    python bench/step_ratio.py --plan identity --tasks mnist-mlp --turns 30

Four hosts of a testbed train the same model with all methods, alternating block by block, so that other
programs on the machine affect all methods equally. `--settle` steps come first, in which ``auto`` chooses its
plan. The output is the median ratio of two methods' step times over all turns, with a 95 % interval from
resampling the turns.
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
from gradwire_lab.job.on_ddp import bf16_hook
from gradwire_lab.testbed.registry import KEPT_MEMORY

RESAMPLED = 2000
METHODS = "DDP", "bf16 hook", "attached"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", default="mnist-mlp,wide-mlp")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--settle", type=int, default=200, help="attached steps before the first turn (200)")
    parser.add_argument(
        "--data-dir", type=Path, help="folder of MNIST's four files; by default, scikit-learn's digits"
    )
    parser.add_argument("--plan", default="auto", help="auto, a codec, or the file of a plan")
    words = parser.parse_args()
    if words.as_rank:
        measure_here(words)
        return
    folder = ["--data-dir", str(words.data_dir.absolute())] if words.data_dir else []
    for task in words.tasks.split(","):
        same = ["--turns", str(words.turns), "--settle", str(words.settle), "--plan", words.plan, *folder]
        command = [sys.executable, __file__, "--as-rank", "--tasks", task, *same]
        run_on_hosts(words.hosts, words.rate, command, report, KEPT_MEMORY)


def measure_here(words: argparse.Namespace) -> None:
    """Time blocks of steps of all methods in turns, as one rank of this process's network."""
    with met_ranks() as ranks:
        tasks = [TASKS[words.tasks](ranks.rank, ranks.world, Files(words.data_dir)) for _ in METHODS]
        hooks = None, bf16_hook, lambda ddp: gradwire.attach(ddp, words.plan)
        methods = [ComparedOnDDP(task, hook) for task, hook in zip(tasks, hooks, strict=True)]
        block = max(tasks[0].block // 2, 2)
        for each in methods:
            each.train(block)  # connects, and rebuilds buckets
        methods[-1].train(words.settle)
        turns = []
        for number in range(words.turns):
            first = number % len(methods)
            seconds = [0.0] * len(methods)
            for at in (*range(first, len(methods)), *range(first)):
                dist.barrier()
                began = time.perf_counter()
                methods[at].train(block)
                spent_s = torch.tensor([(time.perf_counter() - began) / block], dtype=torch.float64)
                dist.all_reduce(spent_s, dist.ReduceOp.MAX)
                seconds[at] = float(spent_s)
            turns.append(seconds)
        plan = str(methods[-1].plan)
        for each in methods:
            each.close()
        ranks.report({"task": tasks[0].name}, {"turns": turns, "plan": plan})


def report(run: Mapping[str, Any]) -> None:
    """Print the result of one task."""
    *others_s, attached_s = zip(*run["turns"], strict=True)
    print(f"{run['task']}: attached with {run['plan']}, {1e3 * median(attached_s):.1f} ms a step")
    for name, times_s in zip(METHODS, others_s, strict=False):
        ratios = [other / own for other, own in zip(times_s, attached_s, strict=True)]
        draw = random.Random(1)
        medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
        low, high = medians[RESAMPLED // 40], medians[-RESAMPLED // 40]
        print(
            f"  {name} {1e3 * median(times_s):.1f} ms: {median(ratios):.3f} times as long, "
            f"95 % interval {low:.3f} to {high:.3f} ({len(ratios)} turns)",
            flush=True,
        )


if __name__ == "__main__":
    main()
