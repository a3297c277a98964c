import numpy as np
import pytest
import torch

from gradwire.codecs import ErrBound
from gradwire.errors import SpecError
from gradwire_gateware.errbound import relative
from gradwire_gateware.errbound.coder import ErrBoundCompressor
from support.axi import bench, transfer
from support.hardware_chunks import payload, raw
from support.squares import sum_of

SHARE = 0.25


def test_more_values_than_the_cpu_adds_at_once_are_refused() -> None:
    relative.check(ErrBound(relative=0.05), 65536)
    relative.check(ErrBound(relative=0.05, block=64), 1 << 20)
    with pytest.raises(SpecError, match=r"at most 65536 values, got 65544; lower chunk_words"):
        relative.check(ErrBound(relative=0.05), 65544)


@pytest.mark.parametrize("block", [None, 64, 128])
def test_words_pass_at_one_a_cycle(block: int | None) -> None:
    codec, chunk = ErrBound(relative=SHARE, block=block), torch.linspace(-1, 1, 24 * 128)
    run = transfer(bench(ErrBoundCompressor, codec, 256, chunk_words=32), [raw(chunk)], expected=12)
    assert run.packets == [payload(codec, part) for part in chunk.chunk(12)]
    assert len(run.arrived) / (run.arrived[-1] - run.arrived[0] + 1) >= 0.99


def at_the_border(count: int, by: int) -> torch.Tensor:
    """Return values whose bound is a power of two, but for ``by`` of them, a little more or less."""
    x = np.full(count, 1 / SHARE, np.float32)
    x[: abs(by)] = np.nextafter(x[: abs(by)], np.float32(np.inf if by > 0 else 0))
    return torch.from_numpy(x)


def near_the_border(count: int, seed: int) -> torch.Tensor:
    """Return random values whose bound is a power of two, but for the rounding of the last one."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(count).astype(np.float32)
    x[-1] = 0
    mean = 4.0 ** np.ceil(np.log(sum_of(x) / count) / np.log(4.0))
    x[-1] = np.sqrt(count * mean - sum_of(x))
    return torch.from_numpy(x)


@pytest.mark.parametrize(
    ("width", "block", "stalls"),
    [(256, None, "none"), (256, None, "bursts"), (256, 64, "random"), (512, 128, "random")],
)
def test_sums_near_a_border_are_added_up_in_the_cpus_order(
    width: int, block: int | None, stalls: str
) -> None:
    codec = ErrBound(relative=SHARE, block=block)
    chunks = [at_the_border(64, by) for by in (-2, -1, 0, 1)] + [at_the_border(100, by) for by in (-1, 1)]
    chunks += [near_the_border(count, seed) for count, seed in ((64, 0), (200, 2), (256, 3))]
    on = bench(ErrBoundCompressor, codec, width, chunk_words=32)
    run = transfer(on, [raw(chunk) for chunk in chunks], stalls)
    assert run.packets == [payload(codec, chunk) for chunk in chunks]
    bounds = {packet[0] for packet in run.packets}
    assert len(bounds) > 1, "some of them must be on each side"


def test_only_sums_near_a_border_take_longer() -> None:
    def cycles(chunk: torch.Tensor) -> int:
        run = transfer(bench(ErrBoundCompressor, ErrBound(relative=SHARE), 256, chunk_words=32), [raw(chunk)])
        return run.left[-1] - run.arrived[-1]

    exact, near = cycles(at_the_border(256, 0)), cycles(at_the_border(256, 1))
    far = cycles(at_the_border(256, 1) * 1.5)
    assert abs(exact - far) <= 2
    assert 256 <= near - exact <= 256 + 11 * 16


@pytest.mark.parametrize("stalls", ["none", "random", "bursts"])
def test_chunks_of_any_length_pass_under_stalls(stalls: str) -> None:
    codec, draw = ErrBound(relative=SHARE), np.random.default_rng(6)
    chunks = [torch.from_numpy(draw.standard_normal(n).astype(np.float32)) for n in draw.integers(0, 20, 200)]
    run = transfer(
        bench(ErrBoundCompressor, codec, 256, chunk_words=32), [raw(chunk) for chunk in chunks], stalls
    )
    assert run.packets == [payload(codec, chunk) for chunk in chunks]
