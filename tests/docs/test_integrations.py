"""The blocks of docs/integrations.md run on two processes, and its lines are those of the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.project import ROOT
from support.snippets import FRAMEWORKS, TORCHRUN, python_blocks, run_blocks

TEXT = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.processes
def test_the_scripts_of_the_page_run_and_compress(tmp_path: Path) -> None:
    blocks = [block for block in python_blocks() if block.page == FRAMEWORKS]
    assert [block.how for block in blocks] == [TORCHRUN] * 4
    printed = run_blocks(blocks, tmp_path, ranks=2)
    compressed = re.findall(r"; (\S+) times fewer bytes on the wire", printed)
    assert len(compressed) == printed.count("no gradient bypassed the codec") == 2 * 4
    assert all(float(fewer) > 1.0 for fewer in compressed)


def test_each_block_names_its_example_and_calls_what_that_calls() -> None:
    for block in BLOCKS:
        (name,) = re.findall(r"examples/(\w+\.py)", block)
        example = (ROOT / "examples" / name).read_text(encoding="utf-8")
        (call,) = set(re.findall(r"gradwire\.attach(?=\()|\b(?:Gradwire\w+|attach_prepared)(?=\()", block))
        assert f"{call}(" in example, name


def test_its_links_and_examples_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
