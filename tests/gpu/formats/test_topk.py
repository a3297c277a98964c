from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import TopK
from support import gpu_cases


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


@pytest.mark.parametrize("spec", TopK.EXAMPLES)
def test_the_bytes_are_the_host_s(interpreted: Callable[..., Any], spec: str) -> None:
    interpreted(gpu_cases.check_chunks, spec)
    interpreted(gpu_cases.check_malformed, spec)
