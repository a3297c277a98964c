"""Ranks for tests: threads over links in memory, or processes over Gloo."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from support import core_alone, default_generator, gpu_cases, ranks
from support.processes import NAME, Pool, prepare
from support.project import test_name
from support.small_tasks import SMALL_TASKS

pytest_plugins = ["support.meeting", "support.training_fixtures"]

gc.disable()  # until all is collected, which stays: to look through it again and again takes seconds
settings.register_profile("gradwire", deadline=None)  # a busy machine is no failure
settings.load_profile("gradwire")

default_generator.take_turns()

# Workers and ranks share few cores, also those of commands; a test of threads says how many it wants.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# A script's background job ignores SIGINT, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core-alone", action="store_true", help="hide gradwire_lab and gradwire_gateware")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.core_alone:
        core_alone.hide()


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """Return ``support.ranks.run_ranks``: every rank is a thread."""
    return ranks.run_ranks


@pytest.fixture(scope="session")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """Yield the process that interprets kernels, shared by all tests of a worker."""
    before = multiprocessing.active_children()
    with gpu_cases.interpreter() as started:
        started.submit(int).result(timeout=100)
        for child in set(multiprocessing.active_children()) - set(before):
            child.name = NAME  # no test takes it for one that the code under test has left behind
        yield started


@pytest.fixture
def interpreted(interpreter: ProcessPoolExecutor) -> Callable[..., Any]:
    """Return a function that calls a function in that process, and raises its errors."""
    return lambda function, *args: interpreter.submit(function, *args).result(timeout=100)


ONE_WORKER = {
    "faults": "faults",  # they load the machine
    "testbed": "testbed",  # they compare its namespaces before and after
    "cli/test_testbed.py": "testbed",
    "integrations": "integrations",  # their processes import each framework once
}
"""The group of each folder or file whose tests a single worker runs, one file after the other."""
SPREAD = {"docs/test_examples.py"}
"""Files of long tests that share nothing, so that any worker may run any of them."""
LEARNED = re.compile("|".join(SMALL_TASKS))
"""The tasks that tests of learning train; tests of one model share their DDP runs."""
LONG = (
    "faults", "job/test_launch", "foreign", "links/mpi", "learning", "docs", "integrations", "job", "cli",
    "ddp", "fsdp", "local", "offload", "pipe", "sharded", "sync", "simulated_device", "parameter_server",
    "autotune/training", "situations", "experiments", "testbed", "links", "exchange", "codecs/conformance",
)  # fmt: skip
"""The tests that begin first, so that no worker is left alone with one of them at the end."""


class Scheduling(LoadScopeScheduling):
    """A schedule in which one worker runs a file or a group of files, so a module's fixture runs once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        name = test_name(path)
        room = name.partition("/")[0]
        groups = [ONE_WORKER[each] for each in (name, room) if each in ONE_WORKER]
        if room == "learning":
            groups = [" ".join(["learning", *LEARNED.findall(nodeid)])]
        return groups[0] if groups else nodeid if name in SPREAD else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Give each worker whole files, in the order in which they were collected."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the long tests to the front."""
    files = [test_name(item.nodeid.partition("::")[0]) for item in items]
    place = {file: [not file.startswith(long) for long in LONG] for file in files}
    order = sorted(range(len(items)), key=lambda number: place[files[number]])
    items[:] = [items[number] for number in order]


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
    # pytest listens to the root, and to each of torch's forty loggers that keep what they say from it, six
    # times a test.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.partition(".")[0] == "torch":
            logger.propagate = True
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
    returns the results in the order of the ranks. A process that raises an error fails the test with its
    traceback, and so does a process that does not answer in time. The ranks in ``absent`` are not waited for.
    Other tests use the same processes, unless ranks are absent or ``alone`` says that ``fn`` makes them
    unusable.
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
