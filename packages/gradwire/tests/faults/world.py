"""One run of the matrix, seen by the process that starts it: ranks begin, something strikes, reports come."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from torch._C._distributed_c10d import TCPStore

from faults.case import WORLD, Case, Report, errors_file, report_file
from faults.outside import listening, scan
from faults.rank import run
from faults.rows import Victim
from faults.store import StoreHost
from support.processes import forkserver

LIMIT_S = 40.0
"""A process that has not ended after this hangs."""
_POLL_S = 0.01
_SCANS_BEFORE = 5


@dataclass
class Outcome:
    """What is left of a run.

    Attributes
    ----------
    reports
        Of each rank that gave one.
    hung
        The ranks that had to be ended.
    scans
        How many came through.
    aborted
        The ranks that ended by SIGABRT, exit code 134 to a shell.
    last_words
        The last line of each rank's standard error, empty where it wrote nothing.
    """

    case: Case
    reports: dict[int, Report]
    hung: list[int]
    scans: int = 0
    aborted: Sequence[int] = ()
    last_words: Sequence[str] = ("",) * WORLD


def play(case: Case, folder: Path) -> Outcome:
    """Start a world for ``case``, let happen what is to happen, and wait until all of it has ended."""
    folder.mkdir()
    act = None if case.row is None else case.row.act
    store = _served() if act == "rendezvous" else StoreHost.of(case, folder)
    draw = Random(case.seed)
    if act == "rendezvous" and store is not None:
        for _ in range(_SCANS_BEFORE):
            scan(("127.0.0.1", store.port), draw, rude=False)
    context = forkserver()
    processes = [
        context.Process(target=run, args=(case, rank, folder, None if store is None else store.port))
        for rank in range(WORLD)
    ]
    for process in processes:
        process.start()
    try:
        scans = _watch(case, processes, folder, draw, store)
        hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
    finally:
        for process in processes:
            process.kill()
            process.join()
        if isinstance(store, StoreHost):
            store.close()
    reports = {
        rank: pickle.loads(report_file(folder, rank).read_bytes())
        for rank in range(WORLD)
        if report_file(folder, rank).exists()
    }
    aborted = [rank for rank, process in enumerate(processes) if process.exitcode == -signal.SIGABRT]
    return Outcome(case, reports, hung, scans, aborted, [_last_words(folder, rank) for rank in range(WORLD)])


def _last_words(folder: Path, rank: int) -> str:
    file = errors_file(folder, rank)
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return lines[-1] if lines else ""


def _served() -> TCPStore:
    return TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT_S)
    )


def _watch(
    case: Case,
    processes: Sequence[BaseProcess],
    folder: Path,
    draw: Random,
    store: TCPStore | StoreHost | None,
) -> int:
    """Return when all processes have ended, or at the limit; scan and wake meanwhile, and count the scans."""
    until, scans = time.monotonic() + LIMIT_S * (2 if case.plan == "auto" else 1), 0  # it has more steps
    act = None if case.row is None else case.row.act
    while any(process.is_alive() for process in processes) and time.monotonic() < until:
        if isinstance(store, StoreHost):
            store.strike_when_awaited()
        elif store is not None:
            scans += scan(("127.0.0.1", store.port), draw, rude=False)
        elif act == "ports":
            for address in listening([process.pid for process in processes if process.pid]):
                scans += scan(address, draw, rude=True)
        elif act == "stop" and _others_have_reported(case, folder):
            _wake(processes[case.victim])
        time.sleep(_POLL_S)
    return scans


def _others_have_reported(case: Case, folder: Path) -> bool:
    return all(report_file(folder, rank).exists() for rank in range(WORLD) if rank != case.victim)


def _wake(process: BaseProcess) -> None:
    if process.pid is not None and process.is_alive():
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, signal.SIGCONT)


def expected_reports(case: Case) -> list[int]:
    """Return the ranks that must give a report."""
    gone = case.row is not None and case.row.victim is Victim.GONE
    return [rank for rank in range(WORLD) if not (gone and rank == case.victim)]
