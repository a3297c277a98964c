"""Without a package that gradwire needs, every command says so, and ``doctor`` checks the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import contextlib, io, json, sys
package, commands = sys.argv[1], json.loads(sys.argv[2])

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        found = name.split(".")[0] == package
        return None if found else self.finder.find_spec(name, path, target)

    def find_distributions(self, *context):
        return getattr(self.finder, "find_distributions", lambda *_: ())(*context)

sys.meta_path[:] = [Without(each) for each in sys.meta_path if hasattr(each, "find_spec")]
from gradwire.cli import main
answers = []
for words in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words.split())
    answers.append((words, code, out.getvalue(), err.getvalue()))
sys.stdout.write(json.dumps(answers))
"""
COMMANDS = {
    "doctor --json doctor.json": 1,
    "codecs": 0,
    "--help": 0,
    "testbed clean": 0,
    "experiment --list": 0,
    "reproduce --list": 0,
    "plan --model 5M --hosts 2 --rate 1gbit": 2,
    "train --out out": 2,
    "bench line-rate": 2,
    "bench allreduce": 2,
    "profile -- true": 2,
    "report doctor.json --overwrite": 0,
}
"""Command -> its exit code without torch."""


def answers(package: str, folder: Path, commands: list[str]) -> list[tuple[str, int, str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, package, json.dumps(commands)],
        capture_output=True, text=True, cwd=folder, timeout=120, check=True,
    )  # fmt: skip
    found: list[Any] = json.loads(done.stdout)
    return [tuple(each) for each in found]


@pytest.mark.processes
def test_without_torch_commands_say_what_to_install_and_the_doctor_checks_the_rest(tmp_path: Path) -> None:
    for words, code, out, err in answers("torch", tmp_path, [*COMMANDS]):
        assert code == COMMANDS[words], (words, out, err)
        if code == 2:
            assert err.startswith("gradwire: this command needs torch, which cannot be imported here (")
            assert "pip install torch" in err
            assert (err.count("\n"), out) == (1, "")
        else:
            assert err == "", words
    record = json.loads((tmp_path / "doctor.json").read_text())
    found = {each["check"]: each["result"] for each in record["findings"]}
    assert (found.pop("torch"), found.pop("kernels")) == ("FAIL", "warn")
    assert {"Python", "gradwire", "memory", "limits", "interface", "TLS", "testbeds"} <= found.keys()
    assert "FAIL" not in found.values()
    assert record["ready"] is False


@pytest.mark.processes
def test_without_another_package_the_doctor_names_it(tmp_path: Path) -> None:
    ((_, code, out, err), (_, codecs, *_)) = answers("zstandard", tmp_path, ["doctor", "codecs"])
    assert (code, codecs, err) == (1, 0, "")
    assert any(line.split()[:2] == ["zstandard", "FAIL"] for line in out.splitlines())
