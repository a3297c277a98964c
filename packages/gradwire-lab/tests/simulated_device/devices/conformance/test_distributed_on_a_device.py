"""``all_reduce``, DDP and FSDP give on the simulated device what they give on the CPU, and need each wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import device_ranks

RunProcesses = Callable[..., list[Any]]

pytestmark = pytest.mark.processes
WORLD = 2


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("name", device_ranks.PATHS)
def test_it_gives_what_the_cpu_gives_and_nothing_right_without_any_one_wait(
    name: str, run_processes: RunProcesses
) -> None:
    results = run_processes(WORLD, device_ranks.on_cpu_and_device, name)
    assert all(same(on_device, on_cpu) for on_cpu, on_device, _ in results)
    waits: dict[str, int] = results[0][2]
    assert set(waits) == {"follow", "wait", "complete" if name == "DDP" else "order"}
    needless = []
    for kind, count in waits.items():
        for number in {0, count - 1}:
            found = run_processes(WORLD, device_ranks.without, name, kind, number)
            if None not in found and all(
                same(mine, ours[0]) for mine, ours in zip(found, results, strict=True)
            ):
                needless.append(f"{kind} {number} of {count}")
    assert not needless


def test_ddp_with_gradients_encoded_on_devices_trains_to_the_weights_and_residuals_of_the_cpu(
    run_processes: RunProcesses,
) -> None:
    results = run_processes(WORLD, device_ranks.encoded, "quantize:4", alone=True, timeout_s=120)
    for on_cpu, on_device in results:
        assert len(on_cpu) == 1 + 8
        assert same(on_device, on_cpu)
