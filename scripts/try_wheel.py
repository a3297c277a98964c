"""Try the installed gradwire: print its targets, run its commands, and the README's example on two ranks.

Commands of the other packages run if the package is installed. Without gradwire-lab, a command of the lab
must name this package.

From the source tree, only the README is read: the example runs in a separate folder.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
_TIMEOUT_S = 300.0
_WHERE = "import gradwire._native as n; print(n.__file__, *n.available_targets(), sep='\\n')"
_COMMANDS = (
    ("gradwire", "codecs", 0, "quantize"),
    ("gradwire", "doctor", None, "torch"),
    ("gradwire", "plan --model 25M --hosts 4 --rate 1gbit", 0, "hosts"),
    ("gradwire_gateware", "gateware export --help", 0, "--block"),
    ("gradwire_gateware", "nic --help", 0, "link"),
    ("gradwire_lab", "train --runs sync:fp8 --workers 2 --epochs 1 --max-steps 3 --out train", 0, "loss"),
)
"""Commands by package, with a word of the output and, if always the same, the exit code."""
_WITHOUT_LAB = ("gradwire", "demo", 2, "pip install ./packages/gradwire-lab")


def example(readme: str) -> str:
    """Return the first Python example that attaches gradwire. Raises ``ValueError`` without an example."""
    for code in re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE):
        if "gradwire.attach(" in code:
            return str(code)
    raise ValueError("expected a Python example with gradwire.attach( in the README, got none; add one")


def run_commands(folder: str, environment: dict[str, str]) -> int:
    """Run the commands of the installed packages. Return 1, and report the first failure, or 0."""
    rows = [row for row in _COMMANDS if importlib.util.find_spec(row[0]) is not None]
    rows += [_WITHOUT_LAB] if importlib.util.find_spec("gradwire_lab") is None else []
    for _, words, code, expected in rows:
        done = subprocess.run(
            [sys.executable, "-m", "gradwire", *words.split()],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
            timeout=_TIMEOUT_S,
        )
        told = done.stdout + done.stderr
        wrong_code = done.returncode not in ((0, 1) if code is None else (code,))
        if wrong_code or expected not in told:
            sys.stderr.write(f"expected {expected!r} from gradwire {words}, got {done.returncode}: {told}\n")
            return 1
        print(f"gradwire {words}: ok")  # noqa: T201 - this is a command
    return 0


def main() -> int:
    """Run the checks; return the example's exit code, or 1 if a command fails."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _WHERE]
        where, *targets = subprocess.check_output(
            command, text=True, cwd=folder, env=environment, timeout=_TIMEOUT_S
        ).splitlines()
        print(  # noqa: T201 - this is a command
            f"gradwire {importlib.metadata.version('gradwire')} at {Path(where).parent}: {', '.join(targets)}"
        )
        if run_commands(folder, environment):
            return 1
        script = Path(folder, "example.py")
        script.write_text(example(README.read_text(encoding="utf-8")), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        done = subprocess.run(
            [*command, str(script)], check=False, cwd=folder, env=environment, timeout=_TIMEOUT_S
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
