"""Programs as processes of the fork server, which have imported torch and gradwire when they begin.

A program with an interpreter of its own imports them for seconds. One test of each kind of program does that;
the others are here.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType

from gradwire.script.entry import prepare
from support.processes import forkserver


@dataclass(frozen=True)
class Ended:
    """What is left of a program; under torchrun also what each rank printed, attempt by attempt."""

    returncode: int
    stdout: str
    stderr: str
    ranks: tuple[str, ...] = ()


class Program:
    """A function that runs as a program, in a folder and with variables; what it prints is in ``log``."""

    def __init__(
        self,
        log: Path,
        cwd: Path,
        variables: Mapping[str, str],
        function: Callable[..., object],
        *args: object,
    ) -> None:
        log.mkdir(parents=True)
        self._log = log
        self._process: BaseProcess = forkserver().Process(
            target=_begin, args=(log, cwd, dict(variables), function, args)
        )
        self._process.start()

    def ended(self, timeout_s: float = 100.0) -> Ended:
        """Wait for its end, and end whatever it has left behind."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        self.stop()
        out, err = ((self._log / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        assert code is not None, f"it has not ended after {timeout_s:g} s: {out}{err}"
        return Ended(code, out, err)

    def stop(self) -> None:
        """End it, and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.ident or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _begin(
    log: Path, cwd: Path, variables: dict[str, str], function: Callable[..., object], args: tuple[object, ...]
) -> None:
    gc.freeze()
    os.setsid()  # a group of processes, which can be ended together
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(log / name, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    os.chdir(cwd)
    os.environ |= variables
    prepare()  # as an interpreter's start file does, if the variables have an entry
    sys.exit(function(*args))  # type: ignore[arg-type]


def torchrun(
    script: Path,
    *words: str,
    options: tuple[str, ...] = ("--nproc-per-node=2",),
    log: Path,
    cwd: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Ended:
    """Run a script under torchrun, whose ranks are forks of it."""
    ranks = log / "ranks"
    apart = ("--redirects=3", f"--log-dir={ranks}")  # else ranks write into one another's lines
    agent = Program(log, cwd, variables, _torchrun, str(script), words, (*options, *apart)).ended()
    out, err = (
        [path.read_text(encoding="utf-8") for path in sorted(ranks.glob(f"*/attempt_*/*/{stream}.log"))]
        for stream in ("stdout", "stderr")
    )
    return Ended(agent.returncode, "".join(out), "".join((agent.stderr, *err)), tuple(out))


def _torchrun(script: str, words: tuple[str, ...], options: tuple[str, ...]) -> None:
    from torch.distributed import run

    sys.argv = [script, *words]
    runpy.run_path(script, run_name="imported")  # what the script imports, it imports once for all ranks
    run.main(["--standalone", "--run-path", "--start-method=fork", *options, script, *words])
