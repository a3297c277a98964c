"""The README's Python runs, its commands exist and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from gradwire.cli import main
from gradwire.codecs import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_its_python_blocks_run() -> None:
    assert BLOCKS
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), {})


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^ +|`)make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_its_gradwire_commands_parse(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^ +(?:torchrun .* -m )?gradwire (.+?)(?:\s+#.*)?$", README, re.MULTILINE)
    assert commands
    for command in commands:
        own, _, inner = command.partition(" -- ")  # what a testbed runs is a command, too
        for part in (own, inner.removeprefix("gradwire ")):
            if part:
                assert main([*shlex.split(part), "--help"]) == 0, command
    assert "usage: gradwire" in capsys.readouterr().out


def test_the_codecs_of_its_table_exist() -> None:
    specs = re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE)
    assert len(specs) >= 12
    for spec in specs:
        assert str(parse(spec)) == spec


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
