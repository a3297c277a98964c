"""``make foreign`` in small: one test that passes attached, one that is refused, one that is not there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "run.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), *words], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.processes
def test_the_runner_tells_what_passes_attached_and_what_is_known_to_differ() -> None:
    done = run("test_ddp_join_model_equivalence", "test_ddp_native_mixed_precision_ignored_params")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"test_ddp_join_model_equivalence: passed, (\d+) exchanges", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 0
    assert "ignored_params: known: attach wants a model without a hook" in done.stdout
    assert "1 pass attached as they do plainly, 1 differ as docs/ddp.md says, 0 are bad" in done.stdout
    assert run("test_of_nothing").returncode == 1
