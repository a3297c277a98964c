"""What ``--quiet``, ``--verbose``, and ``--json -`` do to a call, and that it ends with the call."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.cli.call import Call, current_call, serving
from gradwire.cli.parser import Parser, add_json, add_usual
from gradwire.errors import SpecError
from gradwire.files import write_files


def parser(prog: str = "gradwire codecs") -> Parser:
    made = Parser(prog, "Tests.", prog, "")
    add_json(made)
    add_usual(made)
    return made


def run_as_codecs(monkeypatch: pytest.MonkeyPatch, work: Callable[[argparse.Namespace], None]) -> None:
    monkeypatch.setattr("gradwire.cli.codecs.run", lambda words: work(parser().parse_args(words)))


@pytest.mark.parametrize(("words", "level"), [([], None), (["--quiet"], "quiet"), (["--verbose"], "debug")])
def test_loudness_is_the_level_of_the_log_for_one_call(
    monkeypatch: pytest.MonkeyPatch, words: list[str], level: str | None
) -> None:
    monkeypatch.delenv("GRADWIRE_LOG", raising=False)
    seen: list[str | None] = []
    run_as_codecs(monkeypatch, lambda _: seen.append(os.environ.get("GRADWIRE_LOG")))
    assert main(["codecs", *words]) == 0
    assert (seen, os.environ.get("GRADWIRE_LOG")) == ([level], None)


def test_the_parser_of_another_command_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWIRE_LOG", raising=False)
    with serving(Call("demo")) as call:
        parser("gradwire train").parse_args(["--verbose"])
        assert [call.is_verbose] == [False]
        assert "GRADWIRE_LOG" not in os.environ
        parser("gradwire demo").parse_args(["--verbose"])
        assert current_call().is_verbose
        assert os.environ["GRADWIRE_LOG"] == "debug"
        assert current_call() is call
    assert "GRADWIRE_LOG" not in os.environ


def test_verbose_shows_the_cause_of_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise SpecError("expected x, got y; do z") from ValueError("the cause")

    run_as_codecs(monkeypatch, fail)
    assert main(["codecs"]) == 2
    assert capsys.readouterr().err == "gradwire: expected x, got y; do z\n"
    assert main(["codecs", "--verbose"]) == 2
    shown = capsys.readouterr().err
    assert "ValueError: the cause" in shown
    assert shown.endswith("\ngradwire: expected x, got y; do z\n")


def test_a_record_for_standard_output_is_alone_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def work(words: argparse.Namespace) -> None:
        sys.stdout.write("a table\n")
        write_files({words.json: b"{}\n"})

    run_as_codecs(monkeypatch, work)
    assert main(["codecs", "--json", "-"]) == 0
    assert capsys.readouterr() == ("{}\n", "a table\n")
    sys.stdout.write("as before")
    assert capsys.readouterr() == ("as before", "")
    assert not list(tmp_path.iterdir())


SCRIPT = """
import subprocess, sys
from pathlib import Path
from gradwire.files import output_kept_for_files, write_files
with output_kept_for_files():
    print("a table", flush=True)
    subprocess.run(["echo", "of a child"], check=True)
    write_files({Path("-"): b"{}"})
print(" after")
"""


@pytest.mark.processes
def test_neither_is_the_output_of_processes_that_the_command_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("{} after\n", "a table\nof a child\n")
