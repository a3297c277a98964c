"""``gradwire demo``: gradwire compared with plain DDP and its hook, on hosts with real rate limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from gradwire.cli.parser import Parser, add_folder, add_usual, add_values
from gradwire.cli.settings import OFF
from gradwire.cli.settings import VARIABLE as SETTINGS
from gradwire.codecs import DEFAULT_CODEC
from gradwire.errors import JobError, TestbedError
from gradwire.files import check_folder_new, read_text, write_files
from gradwire.page import PAGE, RECORD
from gradwire.units import parse_rate
from gradwire_lab.cli import train
from gradwire_lab.job.display import VARIABLE, Display, event_of, make_display
from gradwire_lab.job.record import RunResult, read_results
from gradwire_lab.testbed.bed import Testbed, inherited_environment
from gradwire_lab.testbed.output import Stream
from gradwire_lab.testbed.registry import KEPT_MEMORY
from gradwire_lab.testbed.topology import Topology, host_name

HOSTS = 4
MODEL = ["--data", "digits", "--model", "wide", "--batch", "32", "--lr", "0.01", "--schedule", "constant"]
"""A model of 5 million weights and small batches. The network takes most of a step's time."""
LENGTH = ["--epochs", "3", "--max-steps", "120", "--evaluate-every", "12"]
"""The length of a short run.

The loss still falls at the end of the run, so that the time to equal loss is well defined. ``attach`` chooses
its plan in the first third, however busy the machine is.
"""
ON_DDP = ["--compare", "ddp"]
SLOW = "100mbit"
"""The second network, on which only steps are timed. On this network, a step of DDP takes seconds."""
SLOW_PARTS = {
    "baselines": ["--runs", "ddp,bf16-hook", "--max-steps", "5", "--evaluate-every", "1"],
    "attach": ["--runs", "attach:auto", "--epochs", "3", "--max-steps", "63", "--evaluate-every", "5"],
}
"""The jobs on the slow network; ``attach`` first chooses its plan, and so its job is longer."""
PACED = [
    "--runs",
    ",".join(dict.fromkeys(("sync", "sync:bf16", f"sync:{DEFAULT_CODEC}", f"pipe:{DEFAULT_CODEC}"))),
]
"""The runs without a testbed, in which D-Sync replaces DDP, its hook, and ``attach``."""
PICTURE = "demo.png"


def run(arguments: Sequence[str]) -> int:
    """Train on testbeds, or over throttled links on machines without testbeds. Raises ``GradwireError``."""
    words = _parser().parse_args(arguments)
    out = words.out or Path("runs") / f"digits-{datetime.now():%Y%m%d-%H%M%S}"
    loudness = [*["--quiet"] * words.quiet, *["--verbose"] * words.verbose]
    common = [*MODEL, "--workers", str(HOSTS), *["--overwrite"] * words.overwrite, *loudness]
    main = [*common, *LENGTH, *ON_DDP, "--out", str(out)]
    topology = Topology.even(HOSTS, words.rate)
    check_folder_new("--out", out, (PICTURE,), words.overwrite)
    slow = [[*common, *part, "--out", str(out / f"{SLOW}-{name}")] for name, part in SLOW_PARTS.items()]
    networks = [(topology, [main])]
    if topology.rates_nbytes_per_s[0] is None or topology.rates_nbytes_per_s[0] > (parse_rate(SLOW) or 0.0):
        networks.append((Topology.even(HOSTS, SLOW), slow))
    for job in (job for _, jobs in networks for job in jobs):
        train.read(job)  # raises errors here, before every host would report them
    if not words.quiet:
        sys.stdout.write(f"{_announcement(words.rate, len(networks) > 1)}\n")
        sys.stdout.flush()
    with ExitStack() as stack:
        try:
            bed = stack.enter_context(Testbed(topology))
        except TestbedError as error:
            sys.stdout.write(
                f"{error}. Without a testbed, DDP's traffic cannot be throttled, so D-Sync over throttled "
                "links, uncompressed and with bf16, replaces DDP.\n"
            )
            train.run([*common, *LENGTH, *PACED, "--out", str(out), "--rate", words.rate])
            return 0
        code = _train(bed, networks, words.quiet)
    if code == 0:
        _report(out, words.rate, len(networks) > 1, words.verbose)
    return code


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire demo",
        usage="gradwire demo [options]",
        description=f"Train one model on {HOSTS} hosts of a testbed in four ways: plain DDP, PyTorch's\n"
        "bfloat16 hook, gradwire.attach, and gradwire.PipeSGD. Compare the step times,\n"
        f"and the times to plain DDP's final loss. Then time steps at {SLOW}.",
        epilog="example:\n  gradwire demo --rate 1gbit --out runs/demo",
    )
    add_values(parser, ("--rate", "RATE", None, "1gbit", "rate of each host's link (default: 1gbit)"))
    add_folder(parser, "runs/digits-TIME")
    add_usual(parser)
    return parser


def _announcement(rate: str, has_slow: bool) -> str:
    """Return the first lines of the output, at most 80 characters each."""
    more = f", then steps at {SLOW}" if has_slow else ""
    ways = f"one model on {HOSTS} hosts at {rate}, trained in four ways{more}"
    return f"demo: {ways}\nthree to four minutes on two cores"


def _train(bed: Testbed, networks: Sequence[tuple[Topology, list[list[str]]]], quiet: bool) -> int:
    """Perform the jobs of all networks, the first in ``bed``, and return the first nonzero exit code."""
    with make_display(quiet) as display, ExitStack() as stack:
        for topology, jobs in networks:
            if topology is not bed.topology:
                bed.close()
                bed = stack.enter_context(Testbed(topology))
                display.place = f"{SLOW}, "
            for job in jobs:
                done = bed.run(
                    [sys.executable, "-m", "gradwire", "train", *job],
                    environment=inherited_environment() | KEPT_MEMORY | {VARIABLE: "1", SETTINGS: OFF},
                    sinks=(_Shown(display),),
                )
                if done.failure is not None:
                    sys.stderr.write(f"gradwire: {done.failure}\n")
                    return done.exit_code
    return 0


def _report(out: Path, rate: str, has_slow: bool, verbose: bool) -> None:
    """Show and draw the results in the records of all jobs. Raises ``JobError``."""
    from gradwire_lab.job.demo import NetworkRuns, draw_demo, show_demo

    fast, slow = NetworkRuns(rate, _results(out)), None
    if has_slow:
        slow = NetworkRuns(
            SLOW, tuple(each for name in SLOW_PARTS for each in _results(out / f"{SLOW}-{name}"))
        )
    title = f"digits, wide: {HOSTS} hosts at {rate}, {fast.results[0].steps} steps"
    show_demo(title, fast, slow, HOSTS, verbose)
    write_files({out / PICTURE: draw_demo(title, fast, slow)})
    sys.stdout.write(f"the picture is {out / PICTURE}\nthe page is {out / PAGE}\n")


def _results(folder: Path) -> tuple[RunResult, ...]:
    """Return the results in the record of a job. Raises ``JobError`` if it cannot be read."""
    try:
        return read_results(json.loads(read_text(folder / RECORD)))
    except OSError as error:
        raise JobError(f"{folder / RECORD} cannot be read: {error.strerror}; run the demo again") from error


class _Shown:
    """A sink that shows rank 0's events, and the errors of all hosts with the host's name."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def __call__(self, host: int, stream: Stream, text: bytes) -> None:
        for line in text.decode(errors="replace").splitlines():
            event = event_of(line) if (host, stream) == (0, "out") else None
            if event is not None:
                self._display.show(event)
            elif stream == "err":
                self._display.say(f"{host_name(host)} | {line}")
