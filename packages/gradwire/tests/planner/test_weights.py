from __future__ import annotations

import torch

from gradwire.planner.encodings import WEIGHTS, measure_weights


def test_smaller_steps_change_fewer_bits() -> None:
    gradients = [torch.randn(20_000, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    found = [measure_weights(gradients, rate, 1) for rate in (1e-6, 1e-4, 1e-2)]
    sizes = [each.at(1).nbytes for each in found]
    assert 0 < sizes[0] < sizes[1] < sizes[2] <= 2.1  # bf16 and headers at most
    assert sizes[0] < 0.1
    for each in found:
        assert (each.codec, each.exact, each.at(1).lost) == (WEIGHTS, True, 0.0)
        assert min(each.at(1).encode_s, each.at(1).decode_s) > 0
