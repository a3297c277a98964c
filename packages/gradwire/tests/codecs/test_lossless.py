"""Byte planes in a Zstandard frame."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zstandard

from gradwire.codecs import Identity, Lossless
from gradwire.errors import PayloadError


@pytest.mark.parametrize("level", [1, 5, 19])
def test_every_bit_pattern_comes_back(level: int) -> None:
    words = np.random.default_rng(level).integers(0, 2**32, 5000, dtype=np.uint32)
    x = torch.from_numpy(words.view(np.float32))
    out = torch.zeros(5000)
    Lossless(level).decode(Lossless(level).encode(x), out)
    assert out.numpy().tobytes() == x.numpy().tobytes()


def test_the_frame_holds_the_byte_planes_from_the_lowest_up(laplace: torch.Tensor) -> None:
    x = laplace[:1000]
    frame = Lossless().encode(x).numpy().tobytes()
    planes = zstandard.ZstdDecompressor().decompress(frame)
    assert planes == x.numpy().view(np.uint8).reshape(-1, 4).T.tobytes()


def test_gradients_shrink_a_little_and_zeros_much(laplace: torch.Tensor) -> None:
    raw = Identity().encode(laplace).numel()
    assert 1.05 < raw / Lossless().encode(laplace).numel() < 1.3
    assert raw / Lossless().encode(torch.zeros_like(laplace)).numel() > 1000


def test_any_level_decodes_any_other(laplace: torch.Tensor) -> None:
    out = torch.zeros(1000)
    Lossless(1).decode(Lossless(19).encode(laplace[:1000]), out)
    assert torch.equal(out, laplace[:1000])


def frame(data: bytes, *, tell_size: bool = True) -> torch.Tensor:
    compressed = zstandard.ZstdCompressor(write_content_size=tell_size).compress(data)
    return torch.frombuffer(bytearray(compressed), dtype=torch.uint8)


@pytest.mark.parametrize("size", [0, 396, 404, 1 << 26])
def test_a_frame_of_another_size_is_refused_before_it_is_unpacked(size: int) -> None:
    with pytest.raises(PayloadError, match="its content is not 400 bytes long"):
        Lossless().decode(frame(bytes(size)), torch.zeros(100))


def test_a_frame_that_does_not_tell_its_size_is_refused() -> None:
    with pytest.raises(PayloadError, match="its content is not 400 bytes long"):
        Lossless().decode(frame(bytes(400), tell_size=False), torch.zeros(100))


def test_two_frames_are_refused() -> None:
    with pytest.raises(PayloadError, match="lossless"):
        Lossless().decode(torch.cat([frame(bytes(400))] * 2), torch.zeros(100))


def test_incompressible_chunks_stay_within_the_worst_case() -> None:
    for n in (1, 10, 1000, 40_000):
        words = np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32)
        payload = Lossless(19).encode(torch.from_numpy(words.view(np.float32)))
        assert 4 * n < payload.numel() <= Lossless(19).max_nbytes(n)
