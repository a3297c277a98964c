from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from gradwire import gpu
from gradwire.codecs import TopK
from support import gpu_cases

SAMPLE = 16384
"""Values that the encoder looks at before it gathers, of a longer chunk."""


def check_ties_and_bad_chunks() -> None:
    """Of equals the lowest index wins, also beyond one program; one bad value too many marks the chunk."""
    n = 5000
    equal, infinite = torch.full((n,), -1.5), torch.ones(n)
    equal[::3] = 1.5
    infinite[100::50] = torch.inf  # 98 of them
    several = (torch.arange(n) % 7 - 3).float()
    for share in (0.0002, 0.0194, 0.0196, 0.3, 1.0):
        for x in (equal, infinite, several, -several * 1e-40):
            gpu_cases.check_chunk(TopK(share), x)


def test_ties_and_bad_chunks(interpreted: Callable[..., Any]) -> None:
    interpreted(check_ties_and_bad_chunks)


def check_short_chunks() -> None:
    for n in (1, 2, 31, 33):
        for x in (gpu_cases.gradient(n), gpu_cases.any_bits(n), torch.zeros(n), torch.full((n,), torch.nan)):
            for share in (0.01, 0.5, 0.99, 1.0):
                gpu_cases.check_chunk(TopK(share), x)


def test_chunks_shorter_than_a_word_of_bits(interpreted: Callable[..., Any]) -> None:
    interpreted(check_short_chunks)


def check_bytes(codec: TopK, x: torch.Tensor) -> None:
    """Compare what is encoded only, so that long chunks take little time."""
    at = (gpu.encode(codec, x).payload() != codec.encode(x)).nonzero().flatten()
    assert not at.numel(), f"{codec} of {x.numel()} values: byte {int(at[0])} is not the host's"


def reaching(codec: TopK, x: torch.Tensor) -> tuple[int, bool]:
    """Return how many of the chunk reach the sample's magnitude; whether they are enough, and have room."""
    launch = mock.Mock(wraps=(topk := import_module("gradwire.gpu.topk")).launch)
    with mock.patch.object(topk, "launch", launch):
        check_bytes(codec, x)
    gather = next(call.args for call in launch.call_args_list if call.args[0] is topk.gather_kernel)
    _, _, _, _, state, _, capacity, _ = gather
    many = int(state[1])
    return many, codec.kept(x.numel()) <= many <= capacity


def check_chunks_of_several_runs() -> None:
    """Programs gather runs of 8192 values, with a whole run at the end or a short one."""
    for n in (8192, 8193, SAMPLE + 1, 50001):
        for x in (gpu_cases.gradient(n), gpu_cases.any_bits(n), torch.randn(n)):
            for share in (1e-4, 0.01, 0.3, 0.97):
                check_bytes(TopK(share), x)
    many, are_gathered = reaching(TopK(0.01), torch.randn(50001))
    assert are_gathered
    assert many < 1000


def test_chunks_of_several_runs(interpreted: Callable[..., Any]) -> None:
    interpreted(check_chunks_of_several_runs)


def check_misleading_samples() -> None:
    """Large values are only where the sample looks, or only where it doesn't."""
    n = 1 << 18
    each = np.arange(SAMPLE)
    looked_at = (each * n + (((each * 40503) & 0xFFFF) * n >> 16)) // SAMPLE
    few, many = torch.randn(n), torch.randn(n) + 100
    few[looked_at] = 100.0
    many[looked_at] = torch.randn(SAMPLE)
    codec = TopK(0.1)
    assert reaching(codec, few) == (SAMPLE, False)
    assert reaching(codec, many)[1] is False
    check_bytes(TopK(0.01), many)


def test_values_of_which_the_sample_does_not_tell(interpreted: Callable[..., Any]) -> None:
    interpreted(check_misleading_samples)


def check_ties_between_runs() -> None:
    """Equal values lie in all runs, gathered or too many for that; zeros are equal, whatever their sign."""
    n = 40000
    ties = torch.randn(n).mul(8).round().div(8)
    zeros = torch.where(torch.arange(n) % 3 == 0, 0.0, -0.0)
    sparse = torch.where(torch.arange(n) % 500 == 7, torch.randn(n), zeros)
    for share in (0.001, 0.01, 0.3):
        for x in (ties, zeros, sparse, torch.full((n,), -2.0), torch.full((n,), 1e-40)):
            check_bytes(TopK(share), x)
    assert reaching(TopK(0.01), torch.full((n,), -2.0)) == (n, False)
    check_bytes(TopK(0.5), torch.zeros(SAMPLE))  # twice as many as are kept are all


def test_ties_between_runs(interpreted: Callable[..., Any]) -> None:
    interpreted(check_ties_between_runs)


def check_bad_values_of_several_runs() -> None:
    """As many as are kept, which are in their places, and one more, which marks the chunk."""
    n = 40000
    for share in (0.001, 0.01):
        k = TopK(share).kept(n)
        for bad in (k - 1, k, k + 1, n // 2, n):
            x = torch.randn(n)
            x[torch.randperm(n)[:bad]] = torch.tensor([torch.inf, -torch.inf, torch.nan]).repeat(n)[:bad]
            check_bytes(TopK(share), x)


def test_bad_values_of_several_runs(interpreted: Callable[..., Any]) -> None:
    interpreted(check_bad_values_of_several_runs)


@pytest.mark.parametrize("spec", TopK.EXAMPLES)
def test_the_bytes_are_the_host_s(interpreted: Callable[..., Any], spec: str) -> None:
    interpreted(gpu_cases.check_chunks, spec)
    interpreted(gpu_cases.check_malformed, spec)
