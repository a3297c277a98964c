"""The factor of clipping has one value, on every processor and with any number of threads."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from gradwire.sync.flat.update import clip, exact_order_norm


def random_gradients(counts: Sequence[int]) -> list[torch.Tensor]:
    """Return gradients of these lengths, of values of many sizes, with the same bits everywhere."""
    found = []
    for count in counts:
        generator = torch.Generator().manual_seed(count)
        mantissas = torch.randint(-(1 << 24), 1 << 24, (count,), generator=generator)
        exponents = torch.randint(0, 40, (count,), generator=generator)
        found.append(mantissas.float() * torch.tensor([2.0**-i for i in range(40)])[exponents])
    return found


COUNTS = (1, 7, 65_536, 65_537, 200_003)
PROGRAM = f"""
import torch
from sync.flat.test_clip import random_gradients
from gradwire.sync.flat.update import exact_order_norm
print([exact_order_norm(each).hex() for each in random_gradients({COUNTS})])
print(torch.backends.cpu.get_cpu_capability())
"""


def test_the_norm_is_the_exact_one_but_for_rounding() -> None:
    for gradient in random_gradients(COUNTS):
        exact = math.sqrt(math.fsum(value * value for value in gradient.tolist()))
        assert exact_order_norm(gradient) == pytest.approx(exact, rel=2.0**-45)
    assert exact_order_norm(torch.zeros(0)) == 0.0
    assert exact_order_norm(torch.full((4,), 3e38)) == pytest.approx(6e38)
    assert exact_order_norm(torch.tensor([1.0, math.inf])) == math.inf
    assert math.isnan(exact_order_norm(torch.tensor([1.0, math.nan])))


def test_the_norm_has_the_same_bits_with_any_threads_and_instructions() -> None:
    wanted = [exact_order_norm(each).hex() for each in random_gradients(COUNTS)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert [exact_order_norm(each).hex() for each in random_gradients(COUNTS)] == wanted
    finally:
        torch.set_num_threads(before)
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found, capability = done.stdout.splitlines()
    assert found == str(wanted)
    assert capability in ("DEFAULT", "NO AVX"), "by the build of torch"


def test_a_longer_gradient_is_scaled_and_a_shorter_one_is_not() -> None:
    gradient = torch.tensor([3.0, 4.0])
    clip(gradient, 5.1)
    assert gradient.tolist() == [3.0, 4.0]
    clip(gradient, 2.5)
    assert gradient.tolist() == pytest.approx([1.5, 2.0])
    spoilt = torch.tensor([3.0, math.inf])
    clip(spoilt, 1.0)
    assert spoilt.tolist() == [3.0, math.inf]
