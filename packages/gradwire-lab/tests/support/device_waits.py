"""Proof that results on a simulated device depend on each of the device's waits."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.errors import GradwireError
from gradwire_lab.simulated_device.simulated import Simulated


def check_each_wait(results: Callable[[Simulated], object]) -> Simulated:
    """Assert that ``results`` fails or returns another value if the device omits any one of its waits.

    Return the device that omitted no wait.
    """
    device = Simulated()
    expected, needless = results(device), []
    for number in range(device.waits["wait"]):
        try:
            if results(Simulated(without=("wait", number))) == expected:
                needless.append(number)
        except (GradwireError, IndexError, OverflowError, RuntimeError):
            pass
    assert not needless
    return device
