"""A process in private namespaces that calls functions of tests: they may make networks.

All hosts and NICs of a test live in this one process: a socket keeps the namespace in which it was made.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from gradwire_lab.testbed.namespaces import private_area
from support.project import ROOT, TESTS_PATH

CALL_TIMEOUT_S = 45.0


class Area:
    """Calls functions of importable modules in its process, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*private_area(), sys.executable, "-m", "support.nic_area"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": TESTS_PATH},
            start_new_session=True,
        )

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """Return what the function returns, or fail with its traceback."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((function.__module__, function.__name__, args), self._process.stdin)
        self._process.stdin.flush()
        result, failure = pickle.load(self._process.stdout)
        assert not failure, failure
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print does not mix with the answers
    while True:
        try:
            module, name, args = pickle.load(inbox)
        except EOFError:
            return
        result, failure = None, ""
        try:
            function = getattr(import_module(module), name)  # what it imports may take a busy machine long
            faulthandler.dump_traceback_later(CALL_TIMEOUT_S, exit=True)
            result = function(*args)
        except BaseException:
            failure = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        pickle.dump((result, failure), outbox)
        outbox.flush()


if __name__ == "__main__":
    main()
