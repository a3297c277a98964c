"""The process that interprets kernels, shared by all tests of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from support.gpu_cases import interpreter


@pytest.fixture(scope="session")
def process() -> Iterator[ProcessPoolExecutor]:
    """Yield the process."""
    with interpreter() as started:
        yield started


@pytest.fixture
def interpreted(process: ProcessPoolExecutor) -> Callable[..., Any]:
    """Return what calls a function there, and raises what it raises."""
    return lambda function, *args: process.submit(function, *args).result(timeout=100)
