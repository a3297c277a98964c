"""A simulated device whose kernels are late, for the tests of it and of its kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated


@pytest.fixture
def device() -> Iterator[Simulated]:
    device = Simulated()
    with Kernels(device):
        yield device
