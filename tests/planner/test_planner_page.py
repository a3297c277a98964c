"""The page about the planner: its Python runs, its commands parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.timing.host import HostCost

PAGE = (Path(__file__).parents[2] / "docs" / "planner.md").read_text(encoding="utf-8")


def test_its_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("gradwire.planner.site.measure_host", lambda *_: HostCost(1e-4, 1e-4))
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "planner.md", "exec"), {})
    assert "Plan(codec=" in capsys.readouterr().out


def test_its_commands_parse(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^ +gradwire (.+?)(?:\s+#.*)?$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main([*shlex.split(command), "--help"]) == 0
    assert "usage: gradwire plan" in capsys.readouterr().out
