"""The environment variables of ``torchrun``, or another launcher, read without torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from gradwire.errors import JobError, shown
from gradwire.units import parse_whole

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR")


def is_launched() -> bool:
    """Return whether ``torchrun``, or a launcher that sets the same variables, has started this process."""
    return all(os.environ.get(variable) for variable in VARIABLES)


def launched_rank() -> tuple[int, int]:
    """Return the rank and world size that the launcher has set as variables. Raises ``JobError``."""
    rank, world = whole("RANK"), whole("WORLD_SIZE")
    if rank >= world:
        raise JobError(f"expected a RANK below WORLD_SIZE={world}, got {rank}; start with torchrun")
    return rank, world


def launched_workers(has_server: bool, asked: int | None) -> int | None:
    """Return the number of launched workers, or None if no launcher started them. Raises ``JobError``."""
    if not is_launched():
        _refuse_half_launched()
        return None
    world = launched_rank()[1]
    workers = world - has_server
    if workers < 1 or asked not in (None, workers):
        some = "at least 1 worker" if asked is None else f"{asked} workers"
        server = " and a server" if has_server else ""
        raise JobError(
            f"expected processes for {some}{server}, got {world}; omit --workers, or start as many processes "
            "as expected"
        )
    return workers


def whole(variable: str) -> int:
    """Return an environment variable's value as a whole number. Raises ``JobError``."""
    text = os.environ.get(variable, "")
    number = parse_whole(text)
    if number is None:
        raise JobError(f"{variable}: expected a whole number, got {shown(text)}; start with torchrun")
    return number


def _refuse_half_launched() -> None:
    """Raise ``JobError`` if some launcher variables are missing: each rank would run its own job."""
    given = [variable for variable in VARIABLES if os.environ.get(variable)]
    if set(given) & {"RANK", "WORLD_SIZE"}:
        missing = [variable for variable in VARIABLES if variable not in given]
        raise JobError(
            f"expected the variables {', '.join(VARIABLES)}, got no {' and '.join(missing)}; start with "
            f"torchrun, or unset {' and '.join(given)} for a job on this machine"
        )


# Signals while processes run: only the parent handles signals, and then ends the other processes.


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Convert SIGTERM and SIGHUP to an exception, so that a parent ends its processes before it exits."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block SIGINT in this thread, and in the processes that this thread starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
