"""Commands that answer at once: none of them may import torch, NumPy or Matplotlib."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT = """
import contextlib, io, sys
from gradwire.cli import main
for words in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(words.split())
    done = words.split()[-1:] in ([], ["--help"], ["--list"], ["--no-measure"])
    if code not in ((0,) if done else (0, 2)):
        sys.exit(f"{words!r} ended with {code}")
    heavy = {"torch", "numpy", "matplotlib"} & set(sys.modules)
    if heavy:
        sys.exit(f"{words!r} imports {heavy}")
"""


def check_commands(commands: Sequence[str], folder: Path) -> None:
    """Check that help, lists and mistakes do not wait for torch."""
    command = [sys.executable, "-c", SCRIPT, *commands]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


def check_import(module: str) -> None:
    """Check that a module can be imported without torch."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
