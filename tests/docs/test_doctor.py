from __future__ import annotations

import re
import shlex

import pytest

from gradwire.cli import main
from support.project import DOCS

TEXT = (DOCS / "doctor.md").read_text(encoding="utf-8")


def test_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(block, "docs/doctor.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "result='ok'" in printed
    assert "set all three, or none" in printed


def test_its_commands_parse(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^(?:torchrun .* -m )?gradwire ([^|\n]+)", TEXT, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        own, _, inner = command.partition(" -- ")
        for part in filter(None, (own, inner.removeprefix("gradwire "))):
            assert main([*shlex.split(part), "--help"]) == 0, command
    assert "usage: gradwire doctor" in capsys.readouterr().out
