"""Chunks that a compressor of the hardware must encode as the native codec does."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from gradwire.codecs import Codec, Quantize, parse

EXHAUSTIVE = "GRADWIRE_GATEWARE_VALUES" in os.environ
"""Whether every codec meets every stall pattern at every width (``make gateware``), or a part of them."""
VALUES = int(os.environ.get("GRADWIRE_GATEWARE_VALUES", "1200")) // 6
"""The values of each of the six long chunks."""
EDGES = (
    0x0000_0000, 0x8000_0000, 0x0000_0001, 0x8000_0001, 0x007F_FFFF, 0x0080_0000, 0x7F7F_FFFF, 0xFF7F_FFFF,
    0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFC0_0000, 0x7F80_0001, 0x3F80_0000, 0xBF80_0000, 0x3F7F_FFFF,
)  # fmt: skip
"""The bits of zeros, subnormals, the largest floats, infinities, NaN, 1 and the float below it."""
LENGTHS = (0, 1, 7, 8, 9, 16, 17, 24, 63, 100)
SCALES = (1e-3, 3e-2, 0.1, 1.0, 100.0)


def cells(
    specs: tuple[str, ...], stalls: Iterable[str], widths: tuple[int, ...]
) -> list[tuple[str, str, int]]:
    """Return what to simulate: all, or the first spec under all stalls and the others under the second."""
    second = list(stalls)[1]
    return [
        (spec, stall, width)
        for spec in specs
        for stall in stalls
        for width in widths
        if (EXHAUSTIVE and not (width == 512 and spec.endswith("x8")))
        or spec == specs[0]
        or (stall == second and width == widths[0])
    ]


def bfp_specs() -> tuple[str, ...]:
    """Return formats of ``bfp``, of which the first fit words of every width; all mantissas if exhaustive."""
    some = ("bfp:7x16", "bfp:1x32", "bfp:3x128", "bfp:10x64", "bfp:15x1024")
    return (*some, *(f"bfp:{bits}x{8 << bits % 8}" for bits in range(1, 16))) if EXHAUSTIVE else some


def quantize_specs() -> tuple[str, ...]:
    """Return formats of ``quantize`` whose blocks are one word and more; more sizes if exhaustive."""
    some = ("quantize:8,block=48", "quantize:4,block=16", "quantize:4,block=1024")
    blocks = (16, 48, 1008, 65536)
    every = (f"quantize:{bits},block={block}" for bits in (8, 4) for block in blocks)
    return (*some, *every) if EXHAUSTIVE else some


def quantize_cells(stalls: Iterable[str], widths: tuple[int, ...]) -> list[tuple[str, str, int]]:
    """Return what to simulate of ``quantize``, whose blocks take long: some cells, unless exhaustive."""
    some = {("random", 256), ("random", 512), ("bursts", 256)}
    every = cells(quantize_specs(), stalls, widths)
    return [cell for cell in every if EXHAUSTIVE or cell[1:] in some]


def quantize_of(spec: str) -> Quantize:
    codec = parse(spec)
    assert isinstance(codec, Quantize)
    return codec


def of_bits(bits: list[int]) -> torch.Tensor:
    """Return the floats with these bits."""
    return torch.tensor([each - (1 << 32) if each >> 31 else each for each in bits], dtype=torch.int32).view(
        torch.float32
    )


def around_borders() -> torch.Tensor:
    """Return every power of two from 2^-30 to 2^2, and its neighbours, with both signs."""
    powers = [(127 + exponent) << 23 for exponent in range(-30, 3)]
    return of_bits([sign << 31 | bits + by for bits in powers for by in (-1, 0, 1) for sign in (0, 1)])


def chunks(values: int = VALUES) -> list[torch.Tensor]:
    """Return gradients of several scales, random bits, edges, class borders, and short chunks."""
    generator = torch.Generator().manual_seed(0)

    def laplace(count: int, scale: float) -> torch.Tensor:
        uniform = torch.rand(count, generator=generator, dtype=torch.float64) - 0.5
        return (-scale * uniform.sign() * torch.log1p(-2 * uniform.abs())).float()

    random_bits = (
        torch.randint(-(1 << 31), (1 << 31) - 1, (values,), generator=generator).int().view(torch.float32)
    )
    edges = of_bits(list(EDGES))
    mixed = laplace(160, 0.1)
    mixed[::10] = edges
    return [
        *(laplace(values, scale) for scale in SCALES),
        *(laplace(length, 0.1) for length in LENGTHS),
        random_bits, edges, mixed, around_borders(),
    ]  # fmt: skip


def raw(chunk: torch.Tensor) -> bytes:
    """Return the bytes of a chunk."""
    return chunk.numpy().tobytes()


def payload(codec: Codec, chunk: torch.Tensor) -> bytes:
    """Return what the native codec encodes."""
    return codec.encode(chunk).numpy().tobytes()


def decoded(codec: Codec, encoded: bytes, count: int) -> bytes:
    """Return what the native codec decodes of a payload."""
    out = torch.zeros(count)
    codec.decode(torch.tensor(list(encoded), dtype=torch.uint8), out)
    return raw(out)


def padded(codec: Codec, encoded: bytes, count: int, unit: int) -> bytes:
    """Return what the native codec decodes of a payload, its padding up to whole units included."""
    return decoded(codec, encoded, -(-count // unit) * unit)
