"""``gradwire doctor``: parse its options, and run the checks of ``gradwire.doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.cli.parser import Parser, chosen, file_path


def run(arguments: Sequence[str]) -> int:
    """Run the command; return 1 if training would fail, else 0. Raises ``GradwireError``."""
    parser = Parser(
        prog="gradwire doctor",
        usage="gradwire doctor [options]",
        description="Check this machine, or all ranks of a launcher, before training.",
        epilog="example:\n  gradwire doctor\n"
        "  torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\\n"
        "      -m gradwire doctor --plan plan.json",
    )
    parser.add_argument(
        "--plan", dest="plan_file", type=file_path, metavar="FILE", help="check this plan, and run it"
    )
    parser.add_argument("--no-line-rate", dest="lines", action="store_false", help="do not measure the links")
    parser.add_argument(
        "--timeout", dest="timeout_s", type=float, default=30.0, metavar="S", help="of each wait, in s (30)"
    )
    parser.add_argument("--json", dest="json_file", type=file_path, metavar="FILE", help="write the record")
    parser.add_argument("--overwrite", action="store_true", help="replace an older FILE of --json")
    parser.add_argument("-h", "--help", action="help", help="show this text")
    words = parser.parse_args(arguments)
    from gradwire.doctor.finding import DoctorOptions
    from gradwire.doctor.report import run_doctor  # imports torch, if it is installed

    return run_doctor(chosen(DoctorOptions, words))
