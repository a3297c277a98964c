from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import gpu
from gradwire.codecs import ErrBound
from support import gpu_cases


@pytest.mark.parametrize("spec", ErrBound.EXAMPLES)
def test_the_bytes_are_the_host_s(interpreted: Callable[..., Any], spec: str) -> None:
    interpreted(gpu_cases.check_chunks, spec)
    interpreted(gpu_cases.check_malformed, spec)


def check_memory_behind_the_payload() -> None:
    codec, x = ErrBound(relative=0.25, block=512), torch.full((300,), math.nan)
    most_nbytes = codec.max_nbytes(300)
    out = torch.full((most_nbytes + 4096,), 255, dtype=torch.uint8)  # 255 is no exponent of a second block
    assert gpu.encode(codec, x, out).payload().tolist() == codec.encode(x).tolist()
    assert (out[most_nbytes:] == 255).all()


def test_a_chunk_of_half_a_program_writes_nothing_behind_its_payload(interpreted: Callable[..., Any]) -> None:
    interpreted(check_memory_behind_the_payload)
