"""A simulated device whose kernels are late, for the tests of it and of its kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradwire.devices import Simulated
from gradwire.devices.kernels import Kernels


@pytest.fixture
def device() -> Iterator[Simulated]:
    device = Simulated()
    with Kernels(device):
        yield device
