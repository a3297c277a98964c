"""``gradwire doctor``: the command's options, and the call of the checks in ``gradwire.doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.cli.parser import Parser, add_json, add_overwrite, add_timeout, add_usual, chosen, file_path


def run(arguments: Sequence[str]) -> int:
    """Run ``gradwire doctor``, and return 1 if training would fail, else 0. Raises ``GradwireError``."""
    parser = Parser(
        prog="gradwire doctor",
        usage="gradwire doctor [options]",
        description="Check this machine, or all ranks of a launcher, before training.",
        epilog="example:\n  gradwire doctor\n"
        "  torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\\n"
        "      -m gradwire doctor --plan plan.json",
    )
    text = "plan file, to check and run"
    parser.add_argument("--plan", dest="plan_file", type=file_path, metavar="FILE", help=text)
    text = "omit the measurement of the links"
    parser.add_argument("--no-line-rate", dest="lines", action="store_false", help=text)
    add_timeout(parser, 30.0, "for each wait")
    add_json(parser, "json_file")
    add_overwrite(parser)
    add_usual(parser)
    words = parser.parse_args(arguments)
    from gradwire.doctor.finding import DoctorOptions
    from gradwire.doctor.report import run_doctor  # imports torch, if it is installed

    return run_doctor(chosen(DoctorOptions, words))
