"""Try the installed gradwire: print its targets, and run the README's example on two ranks.

Without gradwire-lab, a command of the lab must name the missing package.

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
_LAB = "pip install ./packages/gradwire-lab"


def example(readme: str) -> str:
    """Return the first Python example that attaches gradwire. Raises ``ValueError`` without one."""
    for code in re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE):
        if "gradwire.attach(" in code:
            return str(code)
    raise ValueError("expected a Python example with gradwire.attach( in the README, got none; add one")


def main() -> int:
    """Run the checks; return the example's exit code, or 1 if a missing package is not named."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _WHERE]
        where, *targets = subprocess.check_output(
            command, text=True, cwd=folder, env=environment, timeout=_TIMEOUT_S
        ).splitlines()
        print(  # noqa: T201 - this is a command
            f"gradwire {importlib.metadata.version('gradwire')} at {Path(where).parent}: {', '.join(targets)}"
        )
        if importlib.util.find_spec("gradwire_lab") is None:
            demo = [sys.executable, "-m", "gradwire", "demo"]
            told = subprocess.run(
                demo, capture_output=True, text=True, check=False, cwd=folder, env=environment
            )
            if told.returncode != 2 or _LAB not in told.stderr:
                sys.stderr.write(f"expected {_LAB!r} from gradwire demo, got: {told.stdout}{told.stderr}\n")
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
