"""Without torch, the lab's commands say so, or do what needs none of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import answers_without, check_torch_is_named

COMMANDS = {
    "doctor --json doctor.json": 1,
    "testbed clean": 0,
    "experiment --list": 0,
    "reproduce --list": 0,
    "train --out out": 2,
    "demo": 2,
    "experiment training-speed --tasks gpt --seeds 1": 2,
    "bench allreduce": 2,
    "report doctor.json --overwrite": 0,
}
"""Command -> its exit code without torch."""


@pytest.mark.processes
def test_without_torch_commands_say_what_to_install(tmp_path: Path) -> None:
    check_torch_is_named(answers_without("torch", tmp_path, [*COMMANDS]), COMMANDS)
    record = json.loads((tmp_path / "doctor.json").read_text())
    assert "testbeds" in {each["check"] for each in record["findings"]}
