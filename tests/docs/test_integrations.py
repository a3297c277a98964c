"""The blocks of docs/integrations.md run on two processes, and its lines are those of the examples."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist

from support.framework_ranks import as_torchrun_does
from support.project import ROOT

TEXT = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def run(blocks: list[str], folder: Path) -> list[str]:
    """Run scripts of the page, one after the other, in a process whose group exists already."""
    as_torchrun_does()
    os.chdir(folder)
    printed = []
    for block in blocks:
        with (
            patch.object(dist, "init_process_group"),
            patch.object(dist, "destroy_process_group"),
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            exec(compile(block, "docs/integrations.md", "exec"), {"__name__": "__main__"})
        printed.append(out.getvalue())
    return printed


@pytest.mark.processes
def test_the_scripts_of_the_page_run_and_compress(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    assert len(BLOCKS) == 4
    for rank in run_processes(2, run, BLOCKS, tmp_path, timeout_s=110):
        for printed in rank:
            (fewer,) = re.findall(r"; (\S+) times fewer bytes on the wire", printed)
            assert float(fewer) > 1.0
            assert "no gradient went around the codec" in printed


def test_each_block_names_its_example_and_calls_what_that_calls() -> None:
    for block in BLOCKS:
        (name,) = re.findall(r"examples/(\w+\.py)", block)
        example = (ROOT / "examples" / name).read_text(encoding="utf-8")
        (call,) = set(re.findall(r"gradwire\.attach(?=\()|\b(?:Gradwire\w+|attach_prepared)(?=\()", block))
        assert f"{call}(" in example, name


def test_its_links_and_examples_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
