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
def test_the_script_of_the_page_runs(run_processes: Callable[..., list[Any]]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    printed, silent = run_processes(2, run, block)
    assert "2.gradients" in printed
    assert "2.weights" in printed
    assert silent == ""
