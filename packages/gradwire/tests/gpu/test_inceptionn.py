from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import gpu
from gradwire.codecs import Inceptionn, parse
from support import gpu_cases


@pytest.mark.parametrize("spec", Inceptionn.EXAMPLES)
def test_the_bytes_are_the_host_s(interpreted: Callable[..., Any], spec: str) -> None:
    interpreted(gpu_cases.check_chunks, spec)
    interpreted(gpu_cases.check_malformed, spec)


def check_segments() -> None:
    from triton.language import constexpr

    from gradwire.gpu import inceptionn  # imports Triton, which here is the interpreter

    before = inceptionn._SEGMENT, inceptionn._GROUP, inceptionn._SPREAD
    inceptionn._SEGMENT, inceptionn._GROUP, inceptionn._SPREAD = map(constexpr, (128, 3, 2))
    try:
        for spec in ("inceptionn:2^-10", "inceptionn:2^-6"):
            for x in (gpu_cases.any_bits(333), gpu_cases.gradients_of_layers(700), torch.zeros(1200)):
                gpu_cases.check_chunk(parse(spec), x)
    finally:
        inceptionn._SEGMENT, inceptionn._GROUP, inceptionn._SPREAD = before


def test_a_payload_of_many_segments(interpreted: Callable[..., Any]) -> None:
    interpreted(check_segments)


def check_cut() -> None:
    codec, x = parse("inceptionn:2^-10"), gpu_cases.any_bits(50)
    payload, out = codec.encode(x), torch.full((50,), 7.0)
    for count in range(payload.numel() - 40, payload.numel() + 3):
        cut = torch.zeros(count, dtype=torch.uint8)
        cut[: payload.numel()] = payload[:count]
        gpu_cases.check_refusal(codec, cut, 50)
    gpu.decode(codec, payload, out).check()


def test_a_payload_that_is_cut_anywhere_is_refused(interpreted: Callable[..., Any]) -> None:
    interpreted(check_cut)
