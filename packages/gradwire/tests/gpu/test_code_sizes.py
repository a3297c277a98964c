from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

SIZE = 1024


def check_sizes(block: int) -> None:
    from gradwire.codecs import parse
    from gradwire.gpu import code_sizes  # imports Triton, which here is the interpreter

    # Programs of 0, 1, 2 and 4 bytes a value, in this order, and a short one, in steps of 2^-9.
    steps = np.repeat([0.2, 100.0, 3000.0, 1e6, 100.0], [SIZE, SIZE, SIZE, SIZE, 70])
    if block:
        steps[0::block] *= 1000.0
    x = torch.from_numpy((steps * 2.0**-9).astype(np.float32))
    codec = parse(f"errbound:rel=0.25,block={block}" if block else "errbound:2^-10")
    head = torch.zeros(-(-x.numel() // block) if block else 0, dtype=torch.uint8)
    exponent, share = (0, int(np.float32(0.25).view(np.int32))) if block else (117, 0)
    totals, wides = code_sizes.queue_sizes(x, head, exponent, share, block)
    payload = codec.encode(x).numpy()
    assert head.tolist() == payload[: head.numel()].tolist()
    tags = payload[head.numel() :][: -(-x.numel() // 4)]
    kinds = np.stack([tags >> 2 * i & 3 for i in range(4)], axis=1).reshape(-1)[: x.numel()]
    nbytes = np.array([0, 1, 2, 4])[kinds]
    parts = [nbytes[at : at + SIZE] for at in range(0, x.numel(), SIZE)]
    assert totals.tolist() == [int(each.sum()) for each in parts]
    assert wides.tolist() == [int(each.max() > 1) for each in parts]


@pytest.mark.parametrize("block", [0, 64, 1024, 2048])
def test_they_are_those_of_the_host_s_payload(interpreted: Callable[..., Any], block: int) -> None:
    interpreted(check_sizes, block)
