"""``gradwire train``: its command line, parsed into ``JobOptions``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gradwire.autotune.settings import NAME as AUTO
from gradwire.cli.parser import Parser, add_folder, add_timeout, add_usual, chosen, file_path, folder_path
from gradwire.codecs import DEFAULT_CODEC
from gradwire.codecs.spec import check_count
from gradwire.collectives import NAMES as ALGORITHMS
from gradwire.errors import SpecError
from gradwire.launch.launched import launched_workers
from gradwire.page import PAGE
from gradwire.plan import (
    FLOAT_NBYTES,
    MAX_BUCKET_NBYTES,
    MAX_PIPELINE,
    MAX_SEGMENT_NBYTES,
    SEGMENT_UNIT_NBYTES,
    Plan,
)
from gradwire.units import parse_size
from gradwire_lab.job.batches import MODELS
from gradwire_lab.job.data import DATASETS
from gradwire_lab.job.options import (
    CHOOSE,
    COMPARISONS,
    EPOCHS,
    LONGEST_PIPELINE,
    METHODS,
    PIPELINE,
    UNCOMPRESSED,
    JobOptions,
    Run,
    check,
    comparison,
    make_run,
    parse_runs,
)

PLANNED = (
    *("method", "codec", "runs", "compare", "algorithm", "segment", "pipeline", "bucket", "staleness"),
    *("offload", "scale"),
)
"""The options that ``--plan`` replaces."""
WHAT_RUNS = ("method", "codec", "runs", "compare", "staleness")
EXCHANGED = tuple(option for option in PLANNED if option not in WHAT_RUNS)
"""The options of the gradient exchange other than the codec."""


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire train``. Raises ``GradwireError``."""
    words = _parser().parse_args(arguments)
    options = _checked(words)
    from gradwire_lab.job.job import perform_job  # after the checks, because torch's import takes seconds

    folder = perform_job(options, quiet=words.quiet, verbose=words.verbose)
    if folder is not None:
        sys.stdout.write(f"record and plot are in {folder}\n")
        if (folder / PAGE).exists():
            sys.stdout.write(f"the page is {folder / PAGE}\n")


def read(arguments: Sequence[str]) -> JobOptions:
    """Parse and check the options. Raises ``GradwireError``."""
    return _checked(_parser().parse_args(arguments))


def _checked(words: argparse.Namespace) -> JobOptions:
    options = _options(words)
    check(options)
    return options


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire train",
        usage="gradwire train [options]",
        description="Train with N local workers, or as a rank of torchrun. Evaluation is not timed.",
        epilog="example:\n  gradwire train --compare --workers 4 --rate 100mbit --out runs/paper",
    )
    what = parser.add_argument_group("what to run, and how to train")
    _add_runs(what)
    _add_training(what)
    _add_network(parser.add_argument_group("where to run it"))
    return parser


def _add_runs(group: argparse._ArgumentGroup) -> None:
    others = ", ".join(method for method in METHODS if method != "pipe")
    group.add_argument("--method", metavar="M", choices=METHODS, help=f"pipe, or {others}")
    group.add_argument("--codec", metavar="SPEC", help="codec: see 'gradwire codecs', or auto (auto)")
    group.add_argument(
        "--compare",
        nargs="?",
        const=COMPARISONS[0],
        choices=COMPARISONS,
        metavar="WHAT",
        help="compare with others: PS-Sync and D-Sync (paper), or DDP (ddp)",
    )
    group.add_argument("--runs", metavar="LIST", help="compare any METHOD:CODEC, e.g. sync,pipe:quantize:8")
    group.add_argument(
        "--plan", type=file_path, metavar="FILE", help="file of a plan, for method, codec, and sizes"
    )
    group.add_argument("--data", metavar="NAME", default="digits", help=f"{', '.join(DATASETS)} (digits)")
    group.add_argument(
        "--data-dir",
        dest="data_folder",
        type=folder_path,
        metavar="DIR",
        help="folder of the data set, as IDX files (download)",
    )
    group.add_argument("--model", metavar="MODEL", default="mlp", help=f"model: {', '.join(MODELS)} (mlp)")


def _add_training(group: argparse._ArgumentGroup) -> None:
    epochs = ", ".join(f"{count} {name}" for name, count in EPOCHS.items())
    group.add_argument("--epochs", type=int, metavar="N", help=f"epochs of each run ({epochs})")
    group.add_argument("--max-steps", type=int, metavar="N", help="stop each run after N steps")
    group.add_argument("--evaluate-every", type=int, metavar="N", help="evaluate every N steps (an epoch)")
    group.add_argument("--batch", type=int, default=100, metavar="N", help="batch of all workers (100)")
    group.add_argument("--lr", type=float, default=JobOptions.lr, metavar="X", help="peak rate (0.03)")
    group.add_argument(
        "--schedule",
        default=JobOptions.schedule,
        metavar="S",
        help="after the peak: cosine, constant (cosine)",
    )
    group.add_argument("--pipeline", type=int, metavar="K", help="steps in flight, with pipe (2)")
    group.add_argument(
        "--correction",
        metavar="C",
        default=JobOptions.correction,
        help="pipe: eager, or none as in the paper",
    )
    group.add_argument("--staleness", type=int, metavar="S", help="server: steps a worker may lead by (0)")
    group.add_argument("--warmup-epochs", type=int, default=0, metavar="N", help="pipe: D-Sync first (0)")
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed, of weights and shuffles (0)"
    )


def _add_network(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--workers", type=int, metavar="N", help="number of local processes (4, and a server)")
    group.add_argument(
        "--rate", dest="link", metavar="RATE", help="rate of each host's link, here of each rank (unlimited)"
    )
    group.add_argument("--algorithm", metavar="A", help=f"{', '.join(ALGORITHMS[:5])}, ... (ring)")
    group.add_argument("--weights", metavar="SPEC", help="server, sharded: weight codec, e.g. delta:fp32")
    group.add_argument("--offload", metavar="SPEC", help="codec of NICs on the path, inceptionn:2^-10")
    group.add_argument("--scale", metavar="auto", choices=["auto"], help="scale gradients to absolute bounds")
    group.add_argument("--segment", type=_size, metavar="BYTES", help="largest frame, e.g. 1MiB (4MiB)")
    group.add_argument("--bucket", type=_size, metavar="BYTES", help="largest bucket, e.g. 25MB (all in one)")
    add_timeout(group, 60.0, "in each wait")
    add_folder(group, "runs/DATA-TIME")
    add_usual(group)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _options(words: argparse.Namespace) -> JobOptions:
    exchange = _exchange(words)
    runs = _runs(words)
    _check_pipeline(words, runs)
    return chosen(
        JobOptions,
        words,
        runs=runs,
        out=words.out or Path("runs") / f"{words.data}-{datetime.now():%Y%m%d-%H%M%S}",
        exchange=exchange,
        workers=_workers(words, runs),
        epochs=EPOCHS.get(words.data, 1) if words.epochs is None else words.epochs,
    )


def _exchange(words: argparse.Namespace) -> Plan:
    """Return the plan of the options, or of ``--plan``, which also sets ``words.method`` and ``words.codec``.

    Raises ``SpecError``.
    """
    if words.plan is None:
        parts = {"algorithm": words.algorithm, "segment_nbytes": words.segment, "bucket_nbytes": words.bucket}
        parts |= {"offload": words.offload}
        given = {name: part for name, part in parts.items() if part is not None}
        pipeline = PIPELINE if words.pipeline is None else words.pipeline
        for option, value, unit, most in (
            ("--pipeline", pipeline, 1, MAX_PIPELINE),
            ("--segment", words.segment, SEGMENT_UNIT_NBYTES, MAX_SEGMENT_NBYTES),
            ("--bucket", words.bucket, FLOAT_NBYTES, MAX_BUCKET_NBYTES),
        ):
            if value is not None:
                check_count(option, value, unit, most)
        return Plan(pipeline=pipeline, **given)
    said = [f"--{option}" for option in PLANNED if getattr(words, option) not in (None, False)]
    if said:
        raise SpecError(f"--plan defines the whole exchange; omit {' and '.join(said)}")
    plan = Plan.of(words.plan)
    if plan.pipeline > LONGEST_PIPELINE:
        raise SpecError(
            f"expected a pipeline of at most {LONGEST_PIPELINE} steps, got {plan.pipeline} in {words.plan}; "
            "pass another plan"
        )
    words.method = "sharded" if plan.is_sharded else "sync" if plan.pipeline == 1 else "pipe"
    words.codec = str(plan.codec)
    return plan


def _check_pipeline(words: argparse.Namespace, runs: tuple[Run, ...]) -> None:
    methods = dict.fromkeys(run.method for run in runs)
    if words.pipeline not in (None, 1) and "pipe" not in methods:
        others = " and ".join(methods)
        raise SpecError(f"expected the method pipe with --pipeline, got {others}; omit --pipeline")


def _workers(words: argparse.Namespace, runs: tuple[Run, ...]) -> int:
    asked: int | None = words.workers
    launched = launched_workers(has_server=any(run.method == "server" for run in runs), asked=asked)
    if launched is not None:
        return launched
    return JobOptions.workers if asked is None else asked


def _runs(words: argparse.Namespace) -> tuple[Run, ...]:
    if words.staleness is not None and (words.runs is not None or words.compare):
        raise SpecError("--staleness is for a single run; omit it, and write --runs server@2,sync")
    if words.runs is not None:
        if words.compare or words.method or words.codec is not None:
            raise SpecError("--runs sets methods and codecs; omit --compare, --method, and --codec")
        return parse_runs(words.runs)
    if words.compare:
        if words.method:
            raise SpecError("--compare sets the methods; omit --method, or use --runs")
        return comparison(_codec(words, words.compare == "ddp", DEFAULT_CODEC), words.compare)
    method = words.method or "pipe"
    return (make_run(method, _codec(words, method in CHOOSE, UNCOMPRESSED), words.staleness),)


def _codec(words: argparse.Namespace, may_choose: bool, otherwise: str) -> str:
    """Return ``--codec`` or, if it is missing, ``auto`` or ``otherwise``.

    ``auto`` needs ``may_choose``, and no options of the exchange.
    """
    if words.codec is not None:
        return str(words.codec)
    said = any(getattr(words, option) is not None for option in EXCHANGED)
    return AUTO if may_choose and not said else otherwise
