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
    from gradwire_lab.job.job import perform_job  # imports torch, which takes seconds, so check first

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
    group.add_argument(
        "--codec", metavar="SPEC", help="codec (see 'gradwire codecs'), or auto (default: auto)"
    )
    group.add_argument(
        "--compare",
        nargs="?",
        const=COMPARISONS[0],
        choices=COMPARISONS,
        metavar="WHAT",
        help="compare with other methods: PS-Sync and D-Sync (paper), or DDP (ddp)",
    )
    group.add_argument("--runs", metavar="LIST", help="compare any METHOD:CODEC, e.g. sync,pipe:quantize:8")
    group.add_argument(
        "--plan", type=file_path, metavar="FILE", help="plan file, which sets method, codec, and sizes"
    )
    group.add_argument(
        "--data", metavar="NAME", default="digits", help=f"data set: {', '.join(DATASETS)} (default: digits)"
    )
    group.add_argument(
        "--data-dir",
        dest="data_folder",
        type=folder_path,
        metavar="DIR",
        help="folder of the data set, as IDX files (default: download)",
    )
    group.add_argument(
        "--model", metavar="MODEL", default="mlp", help=f"model: {', '.join(MODELS)} (default: mlp)"
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    epochs = ", ".join(f"{count} {name}" for name, count in EPOCHS.items())
    group.add_argument("--epochs", type=int, metavar="N", help=f"epochs of each run ({epochs})")
    group.add_argument("--max-steps", type=int, metavar="N", help="stop each run after N steps")
    group.add_argument(
        "--evaluate-every", type=int, metavar="N", help="evaluate every N steps (default: one epoch)"
    )
    group.add_argument(
        "--batch", type=int, default=100, metavar="N", help="batch size over all workers (default: 100)"
    )
    group.add_argument(
        "--lr", type=float, default=JobOptions.lr, metavar="X", help="peak learning rate (default: 0.03)"
    )
    group.add_argument(
        "--schedule",
        default=JobOptions.schedule,
        metavar="S",
        help="learning rate after its peak: cosine (default), constant",
    )
    group.add_argument("--pipeline", type=int, metavar="K", help="steps in flight, with pipe (default: 2)")
    group.add_argument(
        "--correction",
        metavar="C",
        default=JobOptions.correction,
        help="with pipe: correction, eager (default) or none",
    )
    group.add_argument(
        "--staleness",
        type=int,
        metavar="S",
        help="with server: a worker's largest lead (default: 0)",
    )
    group.add_argument(
        "--warmup-epochs",
        type=int,
        default=0,
        metavar="N",
        help="with pipe: epochs of D-Sync before the pipeline (default: 0)",
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed, for weights and shuffles (default: 0)"
    )


def _add_network(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers", type=int, metavar="N", help="number of local processes (default: 4, and a server)"
    )
    group.add_argument(
        "--rate",
        dest="link",
        metavar="RATE",
        help="rate of each host's link (default: unlimited)",
    )
    group.add_argument("--algorithm", metavar="A", help=f"{', '.join(ALGORITHMS[:4])}, ... (default: ring)")
    group.add_argument(
        "--weights", metavar="SPEC", help="with server or sharded: weight codec, such as delta:fp32"
    )
    group.add_argument(
        "--offload", metavar="SPEC", help="codec of the NICs on the path, such as inceptionn:2^-10"
    )
    group.add_argument("--scale", metavar="auto", choices=["auto"], help="scale gradients to absolute bounds")
    group.add_argument(
        "--segment", type=_size, metavar="BYTES", help="largest segment, such as 1MiB (default: 4MiB)"
    )
    group.add_argument(
        "--bucket", type=_size, metavar="BYTES", help="largest bucket, such as 25MB (default: one bucket)"
    )
    add_timeout(group, 60.0, "for each wait")
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
        raise SpecError(f"expected --plan without {' and '.join(said)}, got both; omit {' and '.join(said)}")
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
        raise SpecError(
            "expected a single run with --staleness, got several; omit --staleness, and write --runs "
            "server@2,sync"
        )
    if words.runs is not None:
        if words.compare or words.method or words.codec is not None:
            raise SpecError(
                "expected --runs without --compare, --method, and --codec, got both; omit these options"
            )
        return parse_runs(words.runs)
    if words.compare:
        if words.method:
            raise SpecError("expected --compare or --method, got both; omit --method, or use --runs")
        return comparison(_codec(words, words.compare == "ddp", DEFAULT_CODEC), words.compare)
    method = words.method or "pipe"
    return (make_run(method, _codec(words, method in CHOOSE, UNCOMPRESSED), words.staleness),)


def _codec(words: argparse.Namespace, may_choose: bool, otherwise: str) -> str:
    """Return ``--codec`` or, if it is missing, ``auto`` or ``otherwise``.

    The result is ``auto`` if ``may_choose`` is true and no option of the exchange is set.
    """
    if words.codec is not None:
        return str(words.codec)
    said = any(getattr(words, option) is not None for option in EXCHANGED)
    return AUTO if may_choose and not said else otherwise
