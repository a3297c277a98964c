"""A device that owns memory of the CPU is asked for; without one, the CPU owns all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gradwire import devices
from gradwire.devices import base
from gradwire.devices.base import CPU


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    fresh: list[object] = []
    monkeypatch.setattr(base, "_owners", fresh)
    return fresh


def test_no_device_owns_memory_before_one_registers() -> None:
    assert devices.owner_of(torch.ones(1)) is None


def test_the_first_that_knows_a_tensor_owns_it_and_registers_once(registered: list[object]) -> None:
    known = torch.ones(1)

    def nobody(_tensor: torch.Tensor) -> None:
        return None

    def cpu(tensor: torch.Tensor) -> object:
        return CPU if tensor is known else None

    for each in (nobody, cpu, cpu):
        devices.register(each)  # type: ignore[arg-type]
    assert len(registered) == 2
    assert devices.owner_of(known) is CPU
    assert devices.owner_of(torch.ones(1)) is None


@pytest.mark.processes
def test_codecs_ask_for_owners_without_torch() -> None:
    code = "import sys, gradwire.devices; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
