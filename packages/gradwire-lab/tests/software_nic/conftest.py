"""Where tests of NICs run: a process of its own, in namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.nic_area import Area


@pytest.fixture(scope="module")
def call() -> Iterator[Callable[..., Any]]:
    area = Area()
    yield area.call
    area.close()
