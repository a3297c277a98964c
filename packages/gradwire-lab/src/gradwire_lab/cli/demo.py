"""``gradwire demo``: gradwire compared with plain DDP, on hosts with a real rate limit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from gradwire.cli.parser import Parser
from gradwire.errors import TestbedError
from gradwire_lab.cli import train
from gradwire_lab.testbed.bed import Testbed, inherited_environment
from gradwire_lab.testbed.output import Stream, show
from gradwire_lab.testbed.registry import KEPT_MEMORY
from gradwire_lab.testbed.topology import Topology

HOSTS = 4
MODEL = ["--data", "digits", "--model", "wide", "--batch", "32"]
"""A model of 5 million weights and small batches, so that the network takes most of a step's time."""
LENGTH = [
    "--epochs",
    "2",
    "--max-steps",
    "80",
    "--evaluate-every",
    "8",
    "--lr",
    "0.01",
    "--schedule",
    "constant",
]
"""A short run whose loss still falls at the end, so that the time to equal loss is well defined."""
ON_DDP = ["--compare", "ddp"]
PACED = ["--runs", "sync,sync:bf16,sync:fp8,pipe:fp8"]
"""The runs without a testbed: D-Sync in place of DDP, its hook, and ``attach``, also synchronous."""


def run(arguments: Sequence[str]) -> int:
    """Train on a testbed, or over throttled links if it isn't available. Raises ``GradwireError``."""
    parser = Parser(
        prog="gradwire demo",
        usage="gradwire demo [options]",
        description=f"Train one model on {HOSTS} hosts of a testbed in four ways: plain DDP, PyTorch's\n"
        "bfloat16 hook, gradwire.attach, and gradwire.PipeSGD. Compare the step times,\n"
        "and the times to plain DDP's final loss.",
        epilog="example:\n  gradwire demo --rate 1gbit --out runs/demo",
    )
    parser.add_argument("--rate", metavar="RATE", default="1gbit", help="rate of each host's link (1gbit)")
    parser.add_argument("--out", metavar="DIR", help="folder of the results (runs/digits-TIME)")
    parser.add_argument("--overwrite", action="store_true", help="replace an older result in DIR")
    parser.add_argument("-h", "--help", action="help", help="show this text")
    words = parser.parse_args(arguments)
    out = [*(["--out", words.out] if words.out is not None else []), *["--overwrite"] * words.overwrite]
    common = [*MODEL, *LENGTH, "--workers", str(HOSTS), *out]
    topology = Topology.even(HOSTS, words.rate)
    train.read([*common, *ON_DDP])  # so that a mistake is reported once, not by every host
    with ExitStack() as stack:
        try:
            bed = stack.enter_context(Testbed(topology))
        except TestbedError as error:
            sys.stdout.write(
                f"{error}. Without a testbed, DDP's own traffic cannot be throttled: D-Sync over throttled "
                "links, uncompressed and with bf16, replaces it.\n"
            )
            train.run([*common, *PACED, "--link", words.rate])
            return 0
        command = [sys.executable, "-m", "gradwire", "train", *common, *ON_DDP]
        done = bed.run(command, environment=inherited_environment() | KEPT_MEMORY, sinks=(_show_first,))
    if done.failure is not None:
        sys.stderr.write(f"gradwire: {done.failure}\n")
    return done.exit_code


def _show_first(host: int, stream: Stream, text: bytes) -> None:
    """Print rank 0's output unchanged, and all hosts' errors with the host's name."""
    if stream == "err":
        show(host, stream, text)
    elif host == 0:
        sys.stdout.write(text.decode(errors="replace"))
        sys.stdout.flush()
