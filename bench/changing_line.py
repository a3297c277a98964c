"""Change the rate of all hosts' links during training, and compare an automatic run with fixed plans.

    python bench/changing_line.py            # as root, five minutes

The ranks train on a testbed at 1 Gbit/s, at 100 Mbit/s, and at 1 Gbit/s again. An oracle that knows the rates
uses the best of the fixed plans in each of the three parts; its time is the sum of their times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from gradwire.tables import Column, Table, figure, show
from gradwire_lab.testbed.layout import host_limits
from gradwire_lab.testbed.registry import KEPT_MEMORY
from gradwire_lab.testbed.topology import Topology

RATES = ("1gbit", "100mbit", "1gbit")
FIXED = ("identity", "bf16", "fp8", "ecsq:0.25", "ecsq:0.25,block=64")
AUTO = "auto"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4, help="hosts of the testbed (4)")
    parser.add_argument("--steps", type=int, default=300, help="steps at each rate (300)")
    parser.add_argument("--width", type=int, default=1024, help="width of the model's hidden layers (1024)")
    parser.add_argument("--plans", nargs="+", default=FIXED, help="fixed plans, as codecs over a ring")
    parser.add_argument("--worker", nargs=2, metavar=("PLAN", "FILE"), help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.worker is not None:
        plan, path = words.worker
        work(plan, path, words.hosts, words.steps, words.width)
        return
    found = {}
    for plan in (AUTO, *words.plans):
        found[plan] = measure(plan, words)
        print(plan, *(f"{part_s:.1f} s" for part_s in parts(found[plan]["seconds"], words.steps)), flush=True)
    show(table(found, words.steps))
    best_s = sum(min(parts(found[plan]["seconds"], words.steps)[i] for plan in words.plans) for i in range(3))
    print(f"auto took {sum(found[AUTO]['seconds']) / best_s - 1:+.1%} of the oracle's {best_s:.1f} s")
    for step, reason in found[AUTO]["decisions"]:
        print(f"from step {step} on, {reason}")


def measure(plan: str, words: argparse.Namespace) -> dict[str, Any]:
    """Train once on a testbed; return rank 0's measurements."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "seen.json")
        options = [f"--{name}={getattr(words, name)}" for name in ("hosts", "steps", "width")]
        worker = [sys.executable, __file__, "--worker", plan, str(path), *options]
        bed = [sys.executable, "-m", "gradwire", "testbed", "run", "--hosts", str(words.hosts)]
        subprocess.run([*bed, "--rate", RATES[0], "--", *worker], check=True, env=os.environ | KEPT_MEMORY)
        seen: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return seen


def work(plan: str, path: str, hosts: int, steps: int, width: int) -> None:
    """Train as one rank, and change this host's link rate between the parts."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import gradwire

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [
        nn.Linear(256, width),
        nn.ReLU(),
        *(nn.Linear(width, width), nn.ReLU()) * 2,
        nn.Linear(width, 10),
    ]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    seconds = []
    with gradwire.attach(model, plan) as attached:
        for step in range(len(RATES) * steps):
            if step % steps == 0 and step > 0:
                (limit,) = host_limits(Topology.even(hosts, RATES[step // steps]), rank)
                subprocess.run(["tc", *limit.replace("qdisc add", "qdisc change").split()], check=True)
            began = perf_counter()
            x = torch.randn(32, 256, generator=data)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), x[:, :10].argmax(1)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seconds.append(perf_counter() - began)
        decisions = [(step, decision.reason) for step, decision in attached.decisions]
    if rank == 0:
        Path(path).write_text(json.dumps({"seconds": seconds, "decisions": decisions}), encoding="utf-8")
    dist.destroy_process_group()


def parts(seconds: list[float], steps: int) -> list[float]:
    """Return the seconds at each rate."""
    return [sum(seconds[part * steps : (part + 1) * steps]) for part in range(len(RATES))]


def table(found: dict[str, dict[str, Any]], steps: int) -> Table:
    """Return a row per plan: seconds at each rate, and the milliseconds of the last steps there."""
    columns = [Column.of_text("plan")]
    for rate in RATES:
        columns += [Column(rate, "s"), Column("last steps", "ms")]
    rows = []
    for plan, seen in found.items():
        row = [plan]
        for part, whole_s in enumerate(parts(seen["seconds"], steps)):
            last = seen["seconds"][part * steps + steps // 2 : (part + 1) * steps]
            row += [figure(whole_s), figure(1e3 * median(last))]
        rows.append(tuple(row))
    return Table(tuple(columns), rows)


if __name__ == "__main__":
    main()
