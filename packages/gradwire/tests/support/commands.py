"""Commands in processes of their own: without a package, and with a reader that leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPT = """
import contextlib, io, json, sys
package, commands = sys.argv[1], json.loads(sys.argv[2])

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        found = name.split(".")[0] == package
        return None if found else self.finder.find_spec(name, path, target)

    def find_distributions(self, *context):
        return getattr(self.finder, "find_distributions", lambda *_: ())(*context)

sys.meta_path[:] = [Without(each) for each in sys.meta_path if hasattr(each, "find_spec")]
from gradwire.cli import main
answers = []
for words in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words.split())
    answers.append((words, code, out.getvalue(), err.getvalue()))
sys.stdout.write(json.dumps(answers))
"""


def answers_without(package: str, folder: Path, commands: Sequence[str]) -> list[tuple[str, int, str, str]]:
    """Return words, exit code, standard output and standard error of each command without ``package``."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, package, json.dumps(commands)],
        capture_output=True, text=True, cwd=folder, timeout=120, check=True,
    )  # fmt: skip
    found: list[Any] = json.loads(done.stdout)
    return [tuple(each) for each in found]


def check_torch_is_named(found: Sequence[tuple[str, int, str, str]], codes: dict[str, int]) -> None:
    """Check the answers of commands without torch: those that need it name it in one sentence."""
    for words, code, out, err in found:
        assert code == codes[words], (words, out, err)
        if code == 2:
            assert err.startswith("gradwire: this command needs torch, which cannot be imported here (")
            assert "pip install torch" in err
            assert (err.count("\n"), out) == (1, "")
        else:
            assert err == "", words


def left_by_its_reader(words: Sequence[str], folder: Path) -> tuple[int, bytes]:
    """Return exit code and standard error of a command whose standard output is closed at once."""
    command = [sys.executable, "-m", "gradwire", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)
    return process.returncode, err
