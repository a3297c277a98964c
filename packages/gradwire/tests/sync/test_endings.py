"""However a program ends, it ends with the exit code that its end has, and soon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from threading import Event

import pytest

from gradwire.sync import daemon
from support.ends import ALONE, KINDS, WAYS, WORLD
from support.project import TESTS, TESTS_PATH

ENDS = int(os.environ.get("GRADWIRE_ENDS", "0"))
"""``GRADWIRE_ENDS=200`` for two hundred ends of every kind; a pair of a few kinds without it."""
REPEATS = max(1, ENDS // WORLD)
_FEW = [
    "pipe, finished",
    "ddp, by an exception",
    "ddp, backend, by an exception in a hook",
    "pipe, by Ctrl-C",
    "ddp, lanes, by Ctrl-C",
    "all_reduce, in an exit handler",
]
CHOSEN = list(KINDS) if ENDS else _FEW
pytestmark = [pytest.mark.processes, pytest.mark.timeout(60 + 60 * REPEATS)]


def _ends(repeats: int, *kinds: str) -> list[list[int | str]]:
    program = [sys.executable, str(TESTS / "support" / "ends.py"), str(repeats), *kinds]
    ran = subprocess.run(
        program, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": TESTS_PATH}
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def ends() -> dict[str, list[int | str]]:
    return dict(zip(CHOSEN, _ends(REPEATS, *CHOSEN), strict=True))


@pytest.mark.parametrize("kind", CHOSEN)
def test_a_rank_that_closes_nothing_ends_with_its_own_code(
    kind: str, ends: dict[str, list[int | str]]
) -> None:
    _, way = KINDS[kind]
    wanted = {WAYS[way]} if way != "by Ctrl-C" else {WAYS[way], 1}  # the other's end may come first
    assert len(ends[kind]) == REPEATS * WORLD
    assert set(ends[kind]) <= wanted


def test_an_end_amid_kernels_and_waits_is_no_abort() -> None:
    started = time.monotonic()
    assert _ends(1, *ALONE) == [[0]] * len(ALONE)
    assert time.monotonic() - started < 30


def test_connections_are_closed_however_a_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_under_way", {})
    over, closed = Event(), list[str]()
    thread = daemon.start(over.wait, "a thread that ends by itself", over.set, lambda: closed.append("now"))
    daemon._end_all()
    assert not thread.is_alive()
    assert closed == ["now"]
