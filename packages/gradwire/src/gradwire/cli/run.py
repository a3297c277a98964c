"""``gradwire run``: attach gradwire to an unchanged script, and measure the gain."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gradwire.cli.parser import Parser, add_folder, add_timeout, add_usual, check_range, chosen, file_path
from gradwire.errors import SpecError
from gradwire.files import check_folder_new, check_folder_writable
from gradwire.page import PAGE, RECORD

LEAST_STEPS, MOST_STEPS = 12, 10_000
WHAT = "ddp"
"""The only value of ``--compare``, and its default. ``gradwire train`` accepts the same value."""


def run(arguments: Sequence[str]) -> int:
    """Run ``gradwire run``: check the options, run the script, and return the script's exit code."""
    words, command = _parser().parse_command(arguments, "torchrun --nproc-per-node 2 train.py")
    if words.codec is not None and words.plan is not None:
        raise SpecError("expected --codec or --plan, got both; omit one, because a plan names its codec")
    if words.steps is not None and not words.compare:
        raise SpecError("expected --compare with --steps, got only --steps; add --compare, or omit --steps")
    if words.steps is not None:
        check_range("--steps", words.steps, LEAST_STEPS, MOST_STEPS)
    from gradwire.run.run import RunOptions, run_attached  # imports torch, which takes seconds

    out = words.out or Path("runs") / f"run-{datetime.now():%Y%m%d-%H%M%S}"
    check_folder_new("--out", out, [RECORD, PAGE], words.overwrite)
    check_folder_writable("--out", out)
    others = {"command": tuple(command), "plan": _plan(words.codec, words.plan), "out": out}
    return run_attached(chosen(RunOptions, words, compare=words.compare is not None, **others))


def _plan(codec: str | None, file: Path | None) -> str | None:
    """Return the plan for ``attach``, checked before the script starts. Raises ``SpecError``."""
    from gradwire.plan import Plan

    if file is not None:
        Plan.load(file)
        return str(file.absolute())  # the script may change its folder
    if codec is None or codec == "auto":
        return None
    return str(Plan.of(codec, "--codec").codec)


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire run",
        usage="gradwire run [options] -- COMMAND ...",
        description="Run an unchanged script that trains with DDP or FSDP2, with gradwire attached\n"
        "before its first training step. The exit code is the script's.",
        epilog="example:\n  gradwire run --compare -- torchrun --nproc-per-node 2 train.py",
    )
    group = parser.add_argument_group("gradwire")
    group.add_argument("--codec", metavar="SPEC", help="codec, such as fp8 (default: measure and choose one)")
    group.add_argument("--plan", type=file_path, metavar="FILE", help="plan file, instead of a codec")
    group.add_argument("--strict", action="store_true", help="fail if gradwire cannot be attached")
    add_timeout(group, 30.0, "for each wait for another rank")
    group = parser.add_argument_group("comparison")
    text = f"compare with other methods: plain DDP or FSDP2, and the bf16 hook (default: {WHAT})"
    group.add_argument("--compare", nargs="?", const=WHAT, choices=[WHAT], metavar="WHAT", help=text)
    group.add_argument("--steps", type=int, metavar="N", help="measured steps, of each method (default: 20)")
    group = parser.add_argument_group("results")
    add_folder(group, "runs/run-TIME")
    add_usual(group)
    return parser
