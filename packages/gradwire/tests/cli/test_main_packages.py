"""Without a package that gradwire needs, every command says so, and ``doctor`` checks the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import answers_without, check_torch_is_named

COMMANDS = {
    "doctor --json doctor.json": 1,
    "codecs": 0,
    "--help": 0,
    "plan --model 5M --hosts 2 --rate 1gbit": 2,
    "line-rate": 2,
    "profile -- true": 2,
    "run -- true": 2,
}
"""Command -> its exit code without torch."""


@pytest.mark.processes
def test_without_torch_commands_say_what_to_install_and_the_doctor_checks_the_rest(tmp_path: Path) -> None:
    check_torch_is_named(answers_without("torch", tmp_path, [*COMMANDS]), COMMANDS)
    record = json.loads((tmp_path / "doctor.json").read_text())
    found = {each["check"]: each["result"] for each in record["findings"]}
    assert (found.pop("torch"), found.pop("kernels")) == ("FAIL", "warn")
    assert {"Python", "gradwire", "memory", "limits", "interface", "TLS"} <= found.keys()
    assert "FAIL" not in found.values()
    assert record["ready"] is False


@pytest.mark.processes
def test_without_another_package_the_doctor_names_it(tmp_path: Path) -> None:
    ((_, code, out, err), (_, codecs, *_)) = answers_without("zstandard", tmp_path, ["doctor", "codecs"])
    assert (code, codecs, err) == (1, 0, "")
    assert any(line.split()[:2] == ["zstandard", "FAIL"] for line in out.splitlines())
