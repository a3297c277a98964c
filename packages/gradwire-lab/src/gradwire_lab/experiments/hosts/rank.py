"""One host's part of an experiment: ``python -m gradwire_lab.experiments.hosts.rank MODULE WORK``."""

from __future__ import annotations

import importlib
import json
import signal
import sys

from gradwire.errors import GradwireError

EXIT_FAILED = 2


def main(module: str, work: str) -> int:
    """Call the module's ``measure`` with this process's rank, and return the exit code."""
    # This module imports torch, so it is imported after the signal handler is set.
    from gradwire_lab.experiments.hosts.ranks import met_ranks

    try:
        with met_ranks() as ranks:
            importlib.import_module(module).measure(ranks, **json.loads(work))
    except GradwireError as error:
        sys.stderr.write(f"gradwire: {error}\n")
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no cleanup or traceback is needed on an interrupt
    sys.exit(main(*sys.argv[1:]))
