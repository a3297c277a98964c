"""Compare predicted with measured exchange times over a grid in a testbed, and rate the chosen plans.

    python bench/prediction.py            # needs root or user namespaces, ip and tc; about 10 minutes
    python bench/prediction.py --quick    # a tenth of it

For every network (hosts x rate), the script first measures the line, host, and codec costs, then times every
plan and compares its prediction with the median. For every network and size, prediction alone *chooses* a
plan; its distance from the best measured plan is what a user would lose.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire.planner.search.select import UNCERTAINTY
from gradwire.timing.replay.replay import replay
from testbed_ranks import Ranks, append, median, run_bed

ALGORITHMS = ["backend", "ring", "butterfly", "tree", "star", "hierarchical"]
CODECS = ["identity", "errbound:2^-10", "quantize:8"]
SIZES = [2 << 20, 8 << 20]
ONLY_RINGS = [("backend", codec) for codec in CODECS if codec != "identity"]
SEGMENTS = [1 << 20]
NETWORKS = [
    (2, "200mbit"),
    (3, "200mbit"),
    (4, "200mbit"),
    (4, "100mbit"),
    (6, "100mbit"),
    (8, "100mbit"),
]
"""As fast as two cores that all hosts share can feed: where they are the limit, a testbed is no network."""
BUDGET_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one network, one size")
    parser.add_argument("--networks", help="instead of the default, e.g. 4:1gbit,8:200mbit")
    parser.add_argument("--json", type=Path, help="keep every point")
    words = parser.parse_args()
    if words.as_rank:
        measure_here(words.as_rank, quick=words.quick)
        return
    networks = NETWORKS[2:3] if words.quick else NETWORKS
    if words.networks:
        networks = [
            (int(hosts), rate) for hosts, rate in (each.split(":") for each in words.networks.split(","))
        ]
    points: list[dict[str, Any]] = []
    for hosts, rate in networks:
        found = run_bed(hosts, rate, __file__, *(["--quick"] if words.quick else []))
        points += [{**point, "rate": rate} for point in found]
        report(points)
    if words.json:
        words.json.write_text(json.dumps(points, indent=1))


def measure_here(out: str, quick: bool) -> None:
    """Time every plan on the network that this process is in."""
    ranks = Ranks()
    environment = ranks.environment(CODECS)
    sizes = SIZES[:1] if quick else SIZES
    for nbytes, algorithm, codec, segment in itertools.product(sizes, ALGORITHMS, CODECS, SEGMENTS):
        if (algorithm == "hierarchical" and ranks.world < 4) or (algorithm, codec) in ONLY_RINGS:
            continue
        plan = Plan(parse(codec), algorithm, segment)
        seconds = ranks.time_s(plan, nbytes // 4, BUDGET_S, least=3)
        if environment is None:
            continue
        predicted = replay(algorithm, ranks.world, nbytes // 4, segment, codec, environment).total_s
        point = {
            "hosts": ranks.world,
            "nbytes": nbytes,
            "algorithm": algorithm,
            "codec": codec,
            "segment_nbytes": segment,
            "measured_s": median(seconds),
            "fastest_s": min(seconds),
            "slowest_s": max(seconds),
            "predicted_s": predicted,
            "line": str(environment.line),
        }
        append(out, point)
        error = 100 * (predicted / point["measured_s"] - 1)
        sys.stdout.write(
            f"{nbytes >> 20:3d} MiB {algorithm:12s} {codec:15s} measured {1e3 * point['measured_s']:7.1f} ms "
            f"({1e3 * min(seconds):.1f}..{1e3 * max(seconds):.1f}) predicted {1e3 * predicted:7.1f} ms "
            f"{error:+5.1f} %\n"
        )
        sys.stdout.flush()
    ranks.leave()


def report(points: list[dict[str, Any]]) -> None:
    """Print the errors of the predictions, and what the choices by prediction lose."""
    errors = sorted(abs(point["predicted_s"] / point["measured_s"] - 1) for point in points)
    print(
        f"\n{len(points)} points: error median {100 * errors[len(errors) // 2]:.1f} %, "
        f"90th percentile {100 * errors[int(0.9 * len(errors))]:.1f} %, largest {100 * errors[-1]:.1f} %"
    )
    by_place = defaultdict(list)
    for point in points:
        by_place[point["hosts"], point["rate"], point["nbytes"]].append(point)
    losses = []
    for place, there in by_place.items():
        for codecs in (CODECS[:1], CODECS[:2], CODECS):  # three accuracy budgets
            allowed = [point for point in there if point["codec"] in codecs]
            chosen = choose(allowed)
            best = min(allowed, key=lambda point: point["measured_s"])
            loss = chosen["measured_s"] / best["measured_s"] - 1
            losses.append(loss)
            print(
                f"  {place[0]} hosts {place[1]:>9s} {place[2] >> 20:3d} MiB, {len(codecs)} codecs: chosen "
                f"{chosen['algorithm']} {chosen['codec']} {1e3 * chosen['measured_s']:.1f} ms, best "
                f"{best['algorithm']} {best['codec']} {1e3 * best['measured_s']:.1f} ms, loss "
                f"{100 * loss:.1f} %"
            )
    good = sum(loss <= 0.03 for loss in losses)
    print(f"within 3 % of the best: {good} of {len(losses)} choices ({100 * good / len(losses):.0f} %)\n")


def choose(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the point that the planner takes: the simplest of those that tie with the fastest."""
    fastest_s = min(point["predicted_s"] for point in points)
    ties = [point for point in points if point["predicted_s"] * (1 - UNCERTAINTY) <= fastest_s]
    return min(ties, key=lambda point: (CODECS.index(point["codec"]), ALGORITHMS.index(point["algorithm"])))


if __name__ == "__main__":
    main()
