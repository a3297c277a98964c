"""Ranks for tests: threads over links in memory, or processes over Gloo."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gradwire.links import Link, loopback
from support.processes import Pool, prepare
from support.project import TESTS

settings.register_profile("gradwire", deadline=None)  # a busy machine is no failure
settings.load_profile("gradwire")

# A script's background job ignores SIGINT, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """Return ``run_ranks(world, fn, *args, links=None, timeout_s=10, errors="raise")``.

    It calls ``fn(link, *args)`` for every rank in a thread of its own and returns the results in the order of
    the ranks. The first exception is raised again at once, even when other ranks hang; with
    ``errors="return"`` an exception is the result of its rank.
    """
    return _run_ranks


def _run_ranks(
    world: int,
    fn: Callable[..., Any],
    *args: object,
    links: Sequence[Link] | None = None,
    timeout_s: float = 10.0,
    errors: str = "raise",
) -> list[Any]:
    ends = list(loopback(world, timeout_s) if links is None else links)
    finished: queue.Queue[tuple[int, Any, BaseException | None]] = queue.Queue()

    def run(rank: int) -> None:
        try:
            finished.put((rank, fn(ends[rank], *args), None))
        except BaseException as error:
            finished.put((rank, None, error))

    for rank in range(world):
        threading.Thread(target=run, args=(rank,), daemon=True, name=f"rank {rank}").start()
    results: list[Any] = [None] * world
    try:
        for _ in range(world):
            rank, result, error = finished.get(timeout=60)
            if error is not None and errors == "raise":
                raise error
            results[rank] = result if error is None else error
    finally:
        for end in ends:
            end.close()
    return results


ONE_WORKER = {
    "faults": "faults",  # they load the machine
    "testbed": "testbed",  # they compare its namespaces before and after
    "cli/test_testbed.py": "testbed",
    "links/mpi/test_link.py": "mpi",  # it does its work once for all of its tests, as the next ones do
    "docs/test_tls.py": "tls",
    "timing/closed_form/test_smart_nic_prototype.py": "prototype",
}
"""The group of a folder's or a file's tests, which one worker does."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell pytest-xdist which tests one worker does, one after the other (``--dist loadgroup``)."""
    for item in items:
        file = item.path.relative_to(TESTS)
        group = ONE_WORKER.get(file.parts[0]) or ONE_WORKER.get(file.as_posix())
        if group is None and "run_processes" in getattr(item, "fixturenames", ()):
            group = "ranks"  # they share them
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any("run_processes" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        prepare()


@pytest.fixture(scope="session")
def process_pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.end()


@pytest.fixture
def run_processes(process_pool: Pool, tmp_path: Path) -> Callable[..., list[Any]]:
    """Return ``run_processes(world, fn, *args, timeout_s=60, absent=(), alone=False)``.

    It calls ``fn(*args)`` in ``world`` processes with ``torch.distributed`` newly initialised over Gloo and
    returns the results in the order of the ranks. A process that raises fails the test with its traceback,
    one that gives no answer in time fails it too; the ranks in ``absent`` are not waited for. Other tests
    use the same processes, unless ranks are absent or ``alone`` says that ``fn`` spoils them.
    """

    def run(
        world: int,
        fn: Callable[..., Any],
        *args: object,
        timeout_s: float = 60.0,
        absent: Sequence[int] = (),
        alone: bool = False,
    ) -> list[Any]:
        folder = tmp_path / f"processes-{time.monotonic_ns()}"
        folder.mkdir()
        return process_pool.run(world, fn, args, folder, timeout_s, absent, alone)

    return run
