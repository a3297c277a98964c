from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist

from support.project import DOCS

PAGE = DOCS / "fsdp.md"


def run(block: str) -> str:
    """Run a script of the page in a process whose group exists already."""
    with (
        patch.object(dist, "init_process_group"),
        patch.object(dist, "destroy_process_group"),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        exec(compile(block, "docs/fsdp.md", "exec"), {})
    return printed.getvalue()


@pytest.mark.processes
@pytest.mark.parametrize(("number", "name"), [(0, "2"), (1, "root")])
def test_the_scripts_of_the_page_run(run_processes: Callable[..., list[Any]], number: int, name: str) -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[number]
    printed, silent = run_processes(2, run, block)
    assert f"{name}.gradient" in printed  # a table may break the word
    assert f"{name}.weights" in printed
    assert "no gradient bypassed the codec" in printed
    assert silent == ""
