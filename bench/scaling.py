"""Measure the exchange time of AlexNet's gradients for 2 to 8 hosts, with a ring and with a server.

    python bench/scaling.py                # needs root or user namespaces, ip and tc; about 10 minutes
    python bench/scaling.py --nbytes 16MB  # one minute

The time stays flat for a ring and grows with the hosts for a server, as in INCEPTIONN, figure 15, and the
measurement study, table 1. The last columns are errors of the models: the
closed form, with the latency and rate that the same run has measured, and the replay.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s, star_s
from gradwire.timing.replay.replay import replay
from gradwire.units import parse_size
from testbed_ranks import Ranks, append, median, run_bed

ALEXNET_NBYTES = 233_000_000
"""As INCEPTIONN's table I has it."""
FORMULAS = {"ring": ring_s, "star": star_s}
SEGMENT_NBYTES = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    parser.add_argument("--nbytes", type=parse_size, default=ALEXNET_NBYTES, help="of the gradient (233MB)")
    parser.add_argument("--rate", default="500mbit", help="of every host")
    parser.add_argument("--hosts", default="2,3,4,5,6,7,8")
    parser.add_argument("--json", type=Path, help="keep every point")
    words = parser.parse_args()
    if words.as_rank:
        measure_here(words.as_rank, words.nbytes)
        return
    points: list[dict[str, Any]] = []
    for hosts in map(int, words.hosts.split(",")):
        points += run_bed(hosts, words.rate, __file__, "--nbytes", str(words.nbytes))
    report(points, words.nbytes)
    if words.json:
        words.json.write_text(json.dumps(points, indent=1))


def measure_here(out: str, nbytes: int) -> None:
    """Time ring and star on the network that this process is in."""
    ranks = Ranks()
    environment = ranks.environment(["identity"])
    for algorithm in FORMULAS:
        count = nbytes // 4
        seconds = ranks.time_s(
            Plan(parse("identity"), algorithm, SEGMENT_NBYTES), count, 10.0, least=1, most=5
        )
        if environment is None:
            continue
        line = environment.line
        link = AlphaBetaGamma(line.latency_s, line.beta_s_per_nbyte)
        append(
            out,
            {
                "hosts": ranks.world,
                "algorithm": algorithm,
                "measured_s": median(seconds),
                "formula_s": FORMULAS[algorithm](ranks.world, nbytes, link),
                "replay_s": replay(
                    algorithm, ranks.world, count, SEGMENT_NBYTES, "identity", environment
                ).total_s,
                "line": str(line),
            },
        )
    ranks.leave()


def report(points: list[dict[str, Any]], nbytes: int) -> None:
    """Print a table; per byte means divided by 2 (p - 1) / p, or by p - 1."""
    print(f"{nbytes / 1e6:.0f} MB, identity, segments of {SEGMENT_NBYTES >> 20} MiB")
    print("hosts algorithm  measured  of 4 hosts  formula  error   replay  error  line")
    base = {point["algorithm"]: point["measured_s"] for point in points if point["hosts"] == 4}
    for point in sorted(points, key=lambda point: (point["algorithm"], point["hosts"])):
        measured, relative = point["measured_s"], base.get(point["algorithm"])
        errors = [100 * (point[model] / measured - 1) for model in ("formula_s", "replay_s")]
        print(
            f"{point['hosts']:5d} {point['algorithm']:9s} {measured:8.2f} s "
            f"{'-' if relative is None else f'{measured / relative:10.2f}x'} {point['formula_s']:7.2f}s "
            f"{errors[0]:+5.1f} % {point['replay_s']:6.2f}s {errors[1]:+5.1f} %  {point['line']}"
        )


if __name__ == "__main__":
    main()
