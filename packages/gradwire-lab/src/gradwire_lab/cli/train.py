"""``gradwire train``: its command line, parsed into ``JobOptions``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gradwire.autotune.settings import NAME as AUTO
from gradwire.cli.parser import (
    Parser,
    add_folder,
    add_timeout,
    add_usual,
    add_values,
    chosen,
    file_path,
    folder_path,
)
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
    add_values(
        group,
        ("--plan", "FILE", file_path, None, "plan file, which sets method, codec, and sizes"),
        ("--data", "NAME", None, "digits", f"data set: {', '.join(DATASETS)} (default: digits)"),
        ("--data-dir data_folder", "DIR", folder_path, None, _DATA_FOLDER),
        ("--model", "MODEL", None, "mlp", f"model: {', '.join(MODELS)} (default: mlp)"),
    )


_DATA_FOLDER = "folder of the data set, as IDX files (default: download)"


def _add_training(group: argparse._ArgumentGroup) -> None:
    epochs = ", ".join(f"{count} {name}" for name, count in EPOCHS.items())
    add_values(
        group,
        ("--epochs", "N", int, None, f"epochs of each run ({epochs})"),
        ("--max-steps", "N", int, None, "stop each run after N steps"),
        ("--evaluate-every", "N", int, None, "evaluate every N steps (default: one epoch)"),
        ("--batch", "N", int, 100, "batch size over all workers (default: 100)"),
        ("--lr", "X", float, JobOptions.lr, "peak learning rate (default: 0.03)"),
        ("--schedule", "S", None, JobOptions.schedule, _SCHEDULE),
        ("--pipeline", "K", int, None, "steps in flight, with pipe (default: 2)"),
        ("--correction", "C", None, JobOptions.correction, _CORRECTION),
        ("--staleness", "S", int, None, "with server: a worker's largest lead (default: 0)"),
        ("--warmup-epochs", "N", int, 0, "with pipe: epochs of D-Sync before the pipeline (default: 0)"),
        ("--seed", "N", int, 0, "random seed, for weights and shuffles (default: 0)"),
    )


_SCHEDULE = "learning rate after its peak: cosine (default), constant"
_CORRECTION = "with pipe: correction, eager (default) or none"


def _add_network(group: argparse._ArgumentGroup) -> None:
    algorithms = f"{', '.join(ALGORITHMS[:4])}, ... (default: ring)"
    add_values(
        group,
        ("--workers", "N", int, None, "number of local processes (default: 4, and a server)"),
        ("--rate link", "RATE", None, None, "rate of each host's link (default: unlimited)"),
        ("--algorithm", "A", None, None, algorithms),
        ("--weights", "SPEC", None, None, "with server or sharded: weight codec, such as delta:fp32"),
        ("--offload", "SPEC", None, None, "codec of the NICs on the path, such as inceptionn:2^-10"),
    )
    group.add_argument("--scale", metavar="auto", choices=["auto"], help="scale gradients to absolute bounds")
    add_values(
        group,
        ("--segment", "BYTES", _size, None, "largest segment, such as 1MiB (default: 4MiB)"),
        ("--bucket", "BYTES", _size, None, "largest bucket, such as 25MB (default: one bucket)"),
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
    exchange, runs = _exchange(words), _runs(words)
    methods = dict.fromkeys(run.method for run in runs)
    if words.pipeline not in (None, 1) and "pipe" not in methods:
        raise SpecError(
            f"expected the method pipe with --pipeline, got {' and '.join(methods)}; omit --pipeline"
        )
    workers = launched_workers(has_server="server" in methods, asked=words.workers)
    return chosen(
        JobOptions,
        words,
        runs=runs,
        out=words.out or Path("runs") / f"{words.data}-{datetime.now():%Y%m%d-%H%M%S}",
        exchange=exchange,
        workers=words.workers if workers is None else workers,
        epochs=EPOCHS.get(words.data, 1) if words.epochs is None else words.epochs,
    )


def _exchange(words: argparse.Namespace) -> Plan:
    """Return the plan of the options, or of ``--plan``, which sets method and codec, too."""
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
    """Return ``--codec``, else ``auto`` if no option of the exchange rules it out, else ``otherwise``."""
    if words.codec is not None:
        return str(words.codec)
    said = any(getattr(words, option) is not None for option in EXCHANGED)
    return AUTO if may_choose and not said else otherwise
