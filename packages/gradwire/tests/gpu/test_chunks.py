from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import gpu
from gradwire.codecs import parse
from gradwire.errors import PayloadError, TensorError
from gradwire.gpu.table import PLACES
from support import gpu_cases
from support.project import TESTS


def check_golden_vectors() -> int:
    checked = 0
    for path in sorted((TESTS / "codecs" / "golden").glob("*.json")):
        for vector in json.loads(path.read_text()):
            spec = vector.get("spec", "lossless")  # what plans make of codecs stays on the host
            if getattr(parse(spec), "compiled", ("",))[0] in PLACES:
                words = [int(word, 16) for word in vector["input"].split()]
                x = torch.tensor(words, dtype=torch.int64).to(torch.int32).view(torch.float32)
                gpu_cases.check_golden(vector["spec"], x, bytes.fromhex(vector["payload"]))
                checked += 1
    return checked


def test_the_golden_vectors(interpreted: Callable[..., Any]) -> None:
    assert interpreted(check_golden_vectors) > 40


def check_memory_of_the_caller() -> None:
    codec, x = parse("errbound:2^-10"), gpu_cases.gradient(100)
    out = torch.full((codec.max_nbytes(100) + 16,), 0xAB, dtype=torch.uint8)
    size = torch.zeros(1, dtype=torch.int64)
    encoded = gpu.encode(codec, x, out, size)
    wanted = codec.encode(x)
    assert encoded.size is size
    assert int(size) == wanted.numel()
    assert encoded.payload().tolist() == wanted.tolist()
    assert encoded.payload().data_ptr() == out.data_ptr()
    assert (out[wanted.numel() :] == 0xAB).all(), "bytes behind the payload were written"
    with pytest.raises(TensorError, match="expected at least 425 bytes in out for 100 values, got 424"):
        gpu.encode(codec, x, out[:424])


def test_memory_of_the_caller(interpreted: Callable[..., Any]) -> None:
    interpreted(check_memory_of_the_caller)


def check_refusals() -> None:
    codec, x = parse("bf16"), torch.zeros(100)
    for wrong, what in ((x.double(), "float64"), (x[::2], "strides"), (x.view(10, 10), "shape")):
        with pytest.raises(TensorError, match=f"x: expected a 1-D contiguous torch.float32.*{what}"):
            gpu.encode(codec, wrong)
    payload = codec.encode(x)
    with pytest.raises(TensorError, match="expected memory aligned to 16 bytes, got an offset of 2"):
        gpu.decode(codec, payload[2:], x)
    elsewhere = torch.empty(200, dtype=torch.uint8, device="meta")
    with pytest.raises(TensorError, match="out: expected a tensor on cpu or in pinned memory, got one on"):
        gpu.encode(codec, x, elsewhere)
    with pytest.raises(TensorError, match="payload: expected a tensor on cpu or in pinned memory, got"):
        gpu.decode(codec, elsewhere, x)
    with pytest.raises(TensorError, match="size: expected one int64, got none"):
        gpu.encode(codec, x, size=torch.empty(0, dtype=torch.int64))
    with pytest.raises(PayloadError, match=r"100 elements .* bf16, .* of 198 bytes: its length"):
        gpu.decode(codec, payload[:-2], x)


def test_refusals(interpreted: Callable[..., Any]) -> None:
    interpreted(check_refusals)


@pytest.mark.parametrize("spec", ["lossless", "ecsq:1"])
def test_a_codec_without_kernels_is_refused_by_name(spec: str) -> None:
    codec = parse(spec)
    with pytest.raises(TensorError, match=f"^{codec.name} has no GPU kernels; encode on the host"):
        gpu.encode(codec, torch.zeros(4))


def test_a_tensor_on_the_cpu_is_refused_where_nothing_interprets() -> None:
    with pytest.raises(TensorError, match="x: expected a tensor on a GPU, got one on cpu"):
        gpu.encode(parse("bf16"), torch.zeros(4))
