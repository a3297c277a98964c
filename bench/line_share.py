"""Measure how much of the line an exchange uses, and when a busy processor makes compression useless.

    python bench/line_share.py            # needs root or user namespaces, ip and tc; about 9 minutes

Identity over a ring is compared with the line rate that the same run measures between two hosts; a codec of
ratio r is compared with r times the speed of identity.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from testbed_ranks import Ranks, append, median, run_bed

CODECS = ["identity", "errbound:2^-10", "quantize:8", "bf16"]
SIZES = [16 << 20, 64 << 20]
SEGMENTS = [1 << 19, 1 << 20, 1 << 21]
RATES = ["100mbit", "200mbit", "500mbit", "1gbit", "2gbit"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--json", type=Path, help="keep every point")
    words = parser.parse_args()
    if words.as_rank:
        measure_here(words.as_rank)
        return
    points: list[dict[str, Any]] = []
    for rate in words.rates.split(","):
        points += [{**point, "rate": rate} for point in run_bed(words.hosts, rate, __file__)]
    report(points)
    if words.json:
        words.json.write_text(json.dumps(points, indent=1))


def measure_here(out: str) -> None:
    """Time a ring with every codec and segment on the network that this process is in."""
    ranks = Ranks()
    environment = ranks.environment(["identity"])
    for nbytes in SIZES:
        for codec in CODECS:
            for segment in SEGMENTS:
                plan = Plan(parse(codec), "ring", segment)
                seconds = ranks.time_s(plan, nbytes // 4, 2.0, least=3, most=9)
                ratio = Exchange(ranks.link, plan).all_reduce(ranks.gradient(nbytes // 4)).ratio
                if environment is not None:
                    point = {
                        "nbytes": nbytes,
                        "codec": codec,
                        "segment_nbytes": segment,
                        "seconds": median(seconds),
                        "ratio": ratio,
                        "busbw": nbytes / median(seconds) * 2 * (ranks.world - 1) / ranks.world,
                        "line": environment.line.nbytes_per_s,
                    }
                    append(out, point)
    ranks.leave()


def report(points: list[dict[str, Any]]) -> None:
    """Print the best segment of every codec: its bus bandwidth, the share of the line, the share of r."""
    print("rate      size    codec           segment   busbw     of line  ratio r  speed-up  of r")
    places = dict.fromkeys((point["rate"], point["nbytes"]) for point in points)
    for rate, nbytes in places:
        there = [point for point in points if (point["rate"], point["nbytes"]) == (rate, nbytes)]
        best = {
            codec: min((p for p in there if p["codec"] == codec), key=lambda p: p["seconds"])
            for codec in CODECS
        }
        for codec, point in best.items():
            speed_up = best["identity"]["seconds"] / point["seconds"]
            print(
                f"{rate:8s} {nbytes >> 20:3d} MiB  {codec:15s} {point['segment_nbytes'] >> 10:5d} KiB "
                f"{point['busbw'] / 1e6:6.1f} MB/s {point['busbw'] / point['line']:8.3f} "
                f"{point['ratio']:8.2f} {speed_up:8.2f}x {speed_up / point['ratio']:6.2f}"
            )


if __name__ == "__main__":
    main()
