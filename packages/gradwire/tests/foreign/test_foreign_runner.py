"""``make foreign`` in small: one test that passes attached, one that is refused, one that is not there."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from support.forks import Program

RUNNER = Path(__file__).parent / "run.py"
TESTS = ["test_ddp_join_model_equivalence", "test_ddp_native_mixed_precision_ignored_params"]


def run(*asked: list[str]) -> None:
    """Run the script once for each list of words, and print how each ended."""
    sys.path.insert(0, str(RUNNER.parent))  # as the interpreter does for a script
    for words in asked:
        sys.argv = [str(RUNNER), *words]
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(RUNNER), run_name="__main__")
        sys.stdout.write(f"exit {ended.value.code}\n")


@pytest.mark.processes
def test_the_runner_tells_what_passes_attached_and_what_is_known_to_differ(tmp_path: Path) -> None:
    done = Program(tmp_path / "log", tmp_path, {}, run, TESTS, ["test_of_nothing"]).ended()
    passed = re.search(r"test_ddp_join_model_equivalence: passed, (\d+) exchanges", done.stdout)
    assert passed is not None, done
    assert int(passed[1]) > 0
    assert "ignored_params: known: attach: expected a model without a communication hook" in done.stdout
    assert "1 pass attached as they do plainly, 1 differ as docs/ddp.md says, 0 are bad" in done.stdout
    assert re.findall("^exit .*$", done.stdout, re.MULTILINE) == ["exit 0", "exit 1"]
