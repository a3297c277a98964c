"""What one pass over decoded values gives, against the codec's own ``decode`` and NumPy, on all targets."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from gradwire import _native
from gradwire.codecs import parse
from gradwire.codecs.native import NativeCodec
from gradwire.errors import PayloadError
from support.sums import bits

LARGE = 300_003
SPECS = (
    "identity",
    "bf16",
    "fp16",
    "truncate:16",
    "truncate:27",
    "quantize:8",
    "quantize:4",
    "quantize:4,block=48",
    "quantize:8,block=65536",
    "bfp:7x16",
    "fp8",
    "bitpack:2",
    "terngrad",
)
VARIABLE = ("errbound:2^-10", "inceptionn:2^-10", "ecsq:0.5")


def native(spec: str) -> NativeCodec:
    codec = parse(spec)
    assert isinstance(codec, NativeCodec)
    return codec


def gradient(n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)) * 0.01


def squares(x: torch.Tensor, start: int, borders: list[int]) -> list[float]:
    values = x.double().square().numpy()
    parts = [(max(a - start, 0), max(b - start, 0)) for a, b in pairwise(borders)]
    return [math.fsum(values[a:b].tolist()) for a, b in parts]


Found = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]


def lose(
    codec: NativeCodec, x: torch.Tensor, borders: list[int], start: int, keeps: bool, divisor: int
) -> Found:
    """Return x, what it lost, sums, total, and whether all is finite, the same bits however they are made."""
    payload, (name, params) = codec.encode(x), codec.compiled
    found: list[Found] = []
    for target in _native.available_targets():
        for threads in ("1", "3"):
            with pytest.MonkeyPatch.context() as patch, _native.use_target(target):
                patch.setenv("GRADWIRE_THREADS", threads)
                own, lost = x.clone(), torch.full_like(x, 7.0)
                sums = torch.full((3, len(borders) - 1), 10.0, dtype=torch.float64)
                way = name, payload, params, own, lost if keeps else None, start, torch.tensor(borders), sums
                total, finite = _native.lose(*way, divisor=divisor, compares=not keeps)
            found.append((own, lost, sums, total, finite))
    for own, lost, sums, total, finite in found[1:]:
        assert torch.equal(bits(own), bits(found[0][0]))
        assert torch.equal(bits(lost), bits(found[0][1]))
        assert str((sums.tolist(), total, finite)) == str((found[0][2].tolist(), *found[0][3:]))
    return found[0]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [0, 1, 4097, LARGE])
def test_one_pass_gives_what_several_give(spec: str, n: int) -> None:
    codec, x, start = native(spec), gradient(n), 5
    borders = [0, 2, 2, start + n // 3, start + n // 3 + 1, start + n]
    decoded = torch.empty_like(x)
    codec.decode(codec.encode(x), decoded)
    for keeps, divisor in ((True, 0), (True, 3), (False, 4), (False, 0)) if n < LARGE else ((True, 4),):
        own, lost, sums, total, finite = lose(codec, x, borders, start, keeps, divisor)
        assert torch.equal(bits(own), bits(decoded / divisor if divisor else x))
        assert torch.equal(bits(lost), bits(x - decoded if keeps else torch.full_like(x, 7.0)))
        wanted = [squares(x - decoded, start, borders), [0.0] * 5, [0.0] * 5]
        if not keeps:
            wanted[1:] = [squares(each, start, borders) for each in (x, decoded)]
        for row, each in zip(sums, wanted, strict=True):
            assert (row - 10.0).tolist() == pytest.approx(each, rel=1e-9, abs=1e-12)
        assert total == pytest.approx(sum(wanted[0]), rel=1e-12)
        assert finite


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_seen_in_both(bad: float) -> None:
    x = gradient(5000)
    x[4999] = bad
    for spec, divisor in (("quantize:4", 0), ("quantize:4", 3), ("bf16", 4)):
        *_, sums, total, finite = lose(native(spec), x, [0, 100, 5000], 0, True, divisor)
        assert not math.isfinite(total)
        assert [math.isfinite(each) for each in sums[0].tolist()] == [True, False]
        assert finite == (divisor == 0)


@pytest.mark.parametrize("spec", [*SPECS, *VARIABLE])
@pytest.mark.parametrize("divisor", [1, 3, 8])
def test_finished_sums_are_decoded_and_divided(spec: str, divisor: int) -> None:
    codec, x = native(spec), gradient(LARGE if divisor == 3 and spec in {"quantize:4", "ecsq:0.5"} else 5001)
    payload, wanted = codec.encode(x), torch.empty_like(x)
    codec.decode(payload, wanted)
    for target in _native.available_targets():
        for threads in ("1", "3"):
            with pytest.MonkeyPatch.context() as patch, _native.use_target(target):
                patch.setenv("GRADWIRE_THREADS", threads)
                out = torch.empty_like(x)
                assert codec.decode_finished(payload, out, divisor)
            assert torch.equal(bits(out), bits(wanted / divisor))


@pytest.mark.parametrize("divisor", [1, 2, 5, 16])
@pytest.mark.parametrize("n", [0, 1, 33, 2100])
def test_quotients_are_torchs_and_their_ends_are_seen(divisor: int, n: int) -> None:
    x = torch.randint(
        -(2**31), 2**31 - 1, (n,), dtype=torch.int32, generator=torch.Generator().manual_seed(n)
    )
    any_floats = x.view(torch.float32)
    for values in (any_floats.nan_to_num(), any_floats, torch.full((n,), 2.0**-149)):
        for target in _native.available_targets():
            with _native.use_target(target):
                found = values.clone()
                finite = _native.finish(found, divisor)
            wanted = values / divisor
            assert finite == bool(wanted.isfinite().all())
            assert torch.equal(bits(found.nan_to_num(nan=1.0)), bits(wanted.nan_to_num(nan=1.0)))
            assert divisor > 1 or torch.equal(bits(found), bits(values))


def test_a_wrong_payload_changes_nothing() -> None:
    codec, x = native("quantize:4"), gradient(3000)
    payload, before, lost = codec.encode(x), x.clone(), torch.ones(3000)
    sums = torch.zeros(3, 1, dtype=torch.float64)
    for wrong in (payload[:-1], torch.full_like(payload, 0x88)):
        name, params = codec.compiled
        with pytest.raises(PayloadError, match="3000 elements encoded with quantize"):
            _native.lose(name, wrong, params, x, lost, 0, torch.tensor([0, 3000]), sums, divisor=2)
        with pytest.raises(PayloadError, match="3000 elements encoded with quantize"):
            codec.decode_finished(wrong, x, 2)
    assert torch.equal(x, before)
    assert lost.eq(1.0).all()
    assert not sums.any()


def test_formats_whose_values_depend_on_what_comes_before_have_no_ranges() -> None:
    assert all(_native.has_ranges(native(spec).compiled[0]) for spec in SPECS)
    assert not any(_native.has_ranges(native(spec).compiled[0]) for spec in VARIABLE)
