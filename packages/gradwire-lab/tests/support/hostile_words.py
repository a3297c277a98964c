"""Values that no option expects, every option of every command, and stubs for what commands begin to do."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.cli.main import commands, main
from gradwire.cli.parser import Parser
from gradwire_lab.experiments import EXPERIMENTS

DIGITS = "9" * 5000
"""More than Python reads as one number."""
NUMBERS = (
    *(
        "",
        "0",
        "-1",
        "1",
        DIGITS,
        f"-{DIGITS}",
        f"0.{'0' * 5000}1",
        "9" * 4000,
        "1" + "0" * 30,
        "1e999",
        "1e-400",
    ),
    *(
        "nan",
        "inf",
        "-inf",
        "0x10",
        "1_0",
        "\uff11\uff12",
        "\u00b2",
        "0.5",
        str(1 << 31),
        str(1 << 63),
        str(1 << 64),
    ),
)
TEXTS = (
    *(
        "a\nb",
        "\x1b[2J",
        "\x7f\u2028",
        "\udcff",
        "x\udcff.json",
        "\ud800",
        "a" * 5000,
        ",",
        ",,",
        "1,",
        "a,a",
    ),
    *("True", "None", "[1]", "{}", "*", "(", "--", "-", "=", ":", "auto", "ring,ring", "é"),
)
SPECS = (
    *(
        f"topk:{DIGITS}",
        f"quantize:{DIGITS}",
        f"errbound:2^{DIGITS}",
        "errbound:2^-99999999",
        f"bfp:7x{DIGITS}",
    ),
    *(
        "ecsq:nan",
        f"sync:topk:{DIGITS}",
        f"server@{DIGITS}",
        f"hierarchical:{DIGITS}",
        "laplace:1e999",
        "normal:nan",
    ),
    *(
        f"{DIGITS}MiB",
        f"0.{'0' * 99}1MiB",
        "1e30mbit",
        f"{DIGITS}gbit",
        "\uff11mbit",
        f"{DIGITS}us",
        f"2:{DIGITS}",
    ),
)
FILES = (
    *(
        "/dev/zero",
        "/dev/null",
        "fifo",
        "fifo.pt",
        "fifo/x",
        "folder",
        "missing/x/y",
        "large.json",
        "large.pt",
    ),
    *("bytes", "bytes.pt", "empty", "deep.json", "deep.pt", "surrogate.json", "kind.json", "version.json"),
)
VALUES = (*NUMBERS, *TEXTS, *SPECS, *FILES)

SEVERAL = (
    *(["bench", "allreduce"], ["gateware", "export"], ["gateware", "report"]),
    *(["testbed", "run"], ["testbed", "clean"]),
)
"""Commands of two words, besides the experiments."""
REQUIRED = {
    "plan": "--model 300k --hosts 2 --rate 1gbit",
    "nic": "--host none0 --link none1 --codec inceptionn:2^-10",
    "gateware export": "--block float-adder --verilog adder.v",
    "testbed run": "-- true",
    "profile": "-- true",
    "run": "-- true",
}
"""What a command needs besides the option that is tried."""
WORK = (
    *(
        "gradwire_lab.job.job.perform_job",
        "gradwire_lab.cli.testbed._perform",
        "gradwire_lab.cli.testbed.clean",
    ),
    *("gradwire.planner.environment.measure_codecs", "gradwire.planner.environment.measure_host"),
    *(
        "gradwire.doctor.report.examine_machine",
        "gradwire.profile.run.run_script",
        "gradwire.run.run.run_script",
        "gradwire_lab.cli.demo.Testbed",
    ),
    *("gradwire.line_rate.run.perform", "gradwire_lab.benchmark.allreduce_run._measure"),
    *(
        "gradwire_gateware.cli.nic.serve",
        "gradwire_gateware.export.export",
        "gradwire_gateware.synthesis.measure",
    ),
    *("gradwire_lab.cli.experiment.perform", "gradwire_lab.cli.reproduce.reproduce"),
)
"""Where commands begin what takes time, after all of their checks."""


class BegunError(BaseException):
    """A command has accepted its words, and would begin its work."""


def begin(*_: object, **__: object) -> None:
    """Stand in the place of a command's work."""
    raise BegunError


def stub_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all commands end where their work would begin."""
    for name in WORK:
        module, _, attribute = name.rpartition(".")
        monkeypatch.setattr(importlib.import_module(module), attribute, begin)


def make_files() -> None:
    """Make the files of ``FILES`` in the present folder."""
    for name in ("fifo", "fifo.pt"):
        os.mkfifo(name)
    Path("folder").mkdir()
    Path("empty").touch()
    Path("bytes").write_bytes(bytes(range(256)) * 16)
    Path("bytes.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    Path("deep.json").write_text("[" * 100_000)
    Path("deep.pt").write_bytes(b"\x80\x02" + b"(" * 100_000)
    Path("surrogate.json").write_text('{"schema": "gradwire.doctor/1", "codec": "\\ud800"}')
    Path("kind.json").write_text('{"schema": "gradwire.unknown/1"}')
    Path("version.json").write_text(f'{{"schema": "gradwire.line-rate/{DIGITS}"}}')
    for name in ("large.json", "large.pt"):
        with Path(name).open("wb") as file:
            file.truncate(1 << 40)


def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], list[str], argparse.Action]]:
    """Yield each option of each command that takes a value: the words before it, those after, the option."""
    made: list[Parser] = []
    initialise = Parser.__init__

    def noted(self: Parser, *args: str, **named: str) -> None:
        initialise(self, *args, **named)
        made.append(self)

    experiments = [["experiment", name] for name in EXPERIMENTS]
    with monkeypatch.context() as context:
        context.setattr(Parser, "__init__", noted)
        for words in ([each] for each in commands()), SEVERAL, experiments:
            for command in words:
                made.clear()
                assert main([*command, "--help"]) == 0
                before, dashes, after = REQUIRED.get(" ".join(command), "").partition("-- ")
                for action in made[-1]._actions:
                    if action.nargs != 0:
                        tail = [dashes.strip(), *after.split()] if dashes else []
                        yield [*command, *before.split()], tail, action
