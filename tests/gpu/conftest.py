"""The process that interprets kernels, shared by all tests of a worker."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from support.gpu_cases import interpreter
from support.processes import NAME


@pytest.fixture(scope="session")
def process() -> Iterator[ProcessPoolExecutor]:
    """Yield the process."""
    before = multiprocessing.active_children()
    with interpreter() as started:
        started.submit(int).result(timeout=100)
        for child in set(multiprocessing.active_children()) - set(before):
            child.name = NAME  # no test takes it for one that the code under test has left behind
        yield started


@pytest.fixture
def interpreted(process: ProcessPoolExecutor) -> Callable[..., Any]:
    """Return what calls a function there, and raises what it raises."""
    return lambda function, *args: process.submit(function, *args).result(timeout=100)
