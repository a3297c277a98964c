"""Change the rate of all hosts' links during training, and compare an automatic run with fixed plans.

    python bench/changing_line.py            # as root, five minutes

The ranks train on a testbed at 1 Gbit/s, at 100 Mbit/s, and at 1 Gbit/s again. An oracle that knows the rates
uses the best fixed plan in each of the three parts; the oracle's time is the sum of these plans' times.
"""

from __future__ import annotations

import argparse
import subprocess
from statistics import median
from typing import Any

import torch.distributed as dist

import gradwire
from gradwire.tables import Column, Table, figure, show
from gradwire_lab.testbed.layout import host_limits
from gradwire_lab.testbed.topology import Topology
from training import Training, measure

RATES = ("1gbit", "100mbit", "1gbit")
FIXED = ("identity", "bf16", "fp8", "ecsq:0.25", "ecsq:0.25,block=64")
AUTO = "auto"
BATCH = 32


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
        found[plan] = measure(__file__, plan, words, RATES[0], ("hosts", "steps", "width"))
        print(plan, *(f"{part_s:.1f} s" for part_s in parts(found[plan]["seconds"], words.steps)), flush=True)
    show(table(found, words.steps))
    best_s = sum(min(parts(found[plan]["seconds"], words.steps)[i] for plan in words.plans) for i in range(3))
    print(f"auto took {sum(found[AUTO]['seconds']) / best_s - 1:+.1%} of the oracle's {best_s:.1f} s")
    for step, reason in found[AUTO]["decisions"]:
        print(f"from step {step} on, {reason}")


def work(plan: str, path: str, hosts: int, steps: int, width: int) -> None:
    """Train as one rank, and change this host's link rate between the parts."""
    training = Training(width, BATCH)
    with gradwire.attach(training.model, plan) as attached:
        for step in range(len(RATES) * steps):
            if step % steps == 0 and step > 0:
                (limit,) = host_limits(Topology.even(hosts, RATES[step // steps]), dist.get_rank())
                subprocess.run(["tc", *limit.replace("qdisc add", "qdisc change").split()], check=True)
            training.step()
        decisions = [(step, decision.reason) for step, decision in attached.decisions]
    training.finish(path, decisions=decisions)


def parts(seconds: list[float], steps: int) -> list[float]:
    """Return the total seconds of the steps at each link rate."""
    return [sum(seconds[part * steps : (part + 1) * steps]) for part in range(len(RATES))]


def table(found: dict[str, dict[str, Any]], steps: int) -> Table:
    """Return a row per plan: seconds at each rate, and the milliseconds of the last steps at this rate."""
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
