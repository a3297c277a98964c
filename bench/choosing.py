"""Measure the cost of a run's choice of a plan: the longest steps, and the time of the trials.

    python bench/choosing.py                              # as root, two minutes
    python bench/choosing.py --width 64 --rate 100mbit
    python bench/choosing.py --rate 200mbit --delay 25ms --steps 220  # a wide-area network

The ranks train on a testbed, once with ``attach(model)`` and once with ``fp8``, the plan with which
``attach(model)`` begins. The second run shows which long steps are due to the machine. Figures are ratios
within one run, apart from the seconds until the first line and until the decision.
"""

from __future__ import annotations

import argparse
import logging
import os
from statistics import median
from time import perf_counter
from typing import Any

import gradwire
from training import Training, measure

AUTO, FIXED = "auto", "fp8"
WARM = 5
"""The number of first steps, which allocate buffers."""
WINDOW = 100
"""The number of first steps in which trials may take at most a tenth of the time."""
ON_TRIAL = "on trial"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4, help="hosts of the testbed (4)")
    parser.add_argument("--rate", default="1gbit", help="rate of their links (1gbit)")
    parser.add_argument("--delay", default="0", help="one-way delay of every frame (0)")
    parser.add_argument("--steps", type=int, default=300, help="steps of each run (300)")
    parser.add_argument("--width", type=int, default=1400, help="width of the hidden layers (1400: 18 MB)")
    parser.add_argument("--batch", type=int, default=32, help="examples of each rank in a step (32)")
    parser.add_argument("--worker", nargs=2, metavar=("PLAN", "FILE"), help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.worker is not None:
        plan, path = words.worker
        work(plan, path, words.steps, words.width, words.batch)
        return
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    for plan in (AUTO, FIXED):
        seen = measure(__file__, plan, words, words.rate, ("steps", "width", "batch"), words.delay)
        print(f"{plan}: {'; '.join(figures(seen))}", flush=True)
        for step, reason in seen["decisions"][:1]:
            print(f"  step {step}: {reason}")
        for line in seen["lines"]:
            print(f"  gradwire: {line}", flush=True)


class Lines(logging.Handler):
    """The lines of ``gradwire``'s logger, and the time of the first line."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines, self.first_s = list[str](), 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Store the text of a log record."""
        self.first_s = self.first_s or perf_counter()
        self.lines.append(record.getMessage())


def work(plan: str, path: str, steps: int, width: int, batch: int) -> None:
    """Train as one rank, and write the step times, decisions, and log lines to ``path``."""
    os.environ["GRADWIRE_LOG"] = "info"
    training, lines = Training(width, batch), Lines()
    logging.getLogger("gradwire").addHandler(lines)
    began = perf_counter()
    with gradwire.attach(training.model, plan) as attached:
        attach_s = perf_counter() - began
        for _ in range(steps):
            training.step()
        decisions = [(step, decision.reason) for step, decision in attached.decisions]
    first_line_s = lines.first_s - began
    training.finish(
        path, decisions=decisions, lines=lines.lines, attach_s=attach_s, first_line_s=first_line_s
    )


def figures(seen: dict[str, Any]) -> list[str]:
    """Return the figures of one run, in words."""
    seconds, decisions = seen["seconds"], seen["decisions"]
    found = [f"attached after {seen['attach_s']:.2f} s, first line after {seen['first_line_s']:.2f} s"]
    if not decisions:
        return [*found, longest("all steps", seconds, WARM, len(seconds))]
    first = decisions[0][0]
    last = next((step for step, reason in decisions if ON_TRIAL not in reason), len(seconds) + 1)
    found.append(f"decided before step {first}, after {sum(seconds[: first - 1]):.1f} s")
    found.append(longest("before", seconds, WARM, first - 1))
    usual_s = median(seconds[WARM : first - 1] or seconds[:WARM])
    tried = seconds[first - 1 : last - 1]
    extra = (sum(tried) - len(tried) * usual_s) / sum(seconds[:WINDOW])
    found.append(f"{len(tried)} steps of trials, with {extra:+.1%} of the first {WINDOW} steps' time")
    found.append(longest("after", seconds, last - 1, len(seconds)))
    return found


def longest(name: str, seconds: list[float], begin: int, end: int) -> str:
    """Return the longest steps of a part of a run, as multiples of the part's median step."""
    part = seconds[begin:end]
    if not part:
        return f"no steps {name}"
    usual_s = median(part)
    most = sorted(range(begin, end), key=seconds.__getitem__)[:-4:-1]
    ratios = ", ".join(f"{seconds[i] / usual_s:.2f} (step {i + 1})" for i in most)
    return f"{name} {1000 * usual_s:.1f} ms a step, the longest {ratios} times that"


if __name__ == "__main__":
    main()
