"""The battery of every codec: each row of the table with its EXAMPLES, and what plans make of them."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from functools import cache

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gradwire import _native
from gradwire.codecs import Codec
from gradwire.errors import PayloadError, TensorError
from support.cases import for_each
from support.every_codec import EVERY, make

LENGTHS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000, 4099)
THREADED = 3 * (1 << 17) + 5
"""Long enough for three parts of kMinPartElements (native/include/gradwire/parallel.h)."""

FLOAT_MAX = float(np.finfo(np.float32).max)
FINITE = {
    "zeros": [0.0] * 40,
    "negative zeros": [-0.0] * 40,
    "subnormals": [1e-45, -1e-45, 1.1754942e-38, -3e-42, 0.0] * 9,
    "smallest normals": [2.0**-126, -(2.0**-126), 2.0**-125] * 9,
    "huge": [FLOAT_MAX, -FLOAT_MAX, 1e38, -(2.0**127), 1.0] * 9,
    "all scales": [s * m * 2.0**e for e in range(-126, 128, 3) for s in (1, -1) for m in (1.0, 1.3, 1.9999)],
    "halves": [s * (q + 0.5) * 2.0**-9 for q in range(140) for s in (1, -1)],
    "powers of two": [s * 2.0**e for e in range(-30, 30) for s in (1, -1)],
    "one outlier": [1e-6] * 50 + [123.0] + [-1e-6] * 50,
}
NONFINITE = {
    "one NaN": [0.01 * i for i in range(20)] + [math.nan] + [-0.3] * 20,
    "infinities": [0.5, math.inf, -0.25, -math.inf, 1e-3] * 9,
    "all NaN": [math.nan] * 33,
    "NaN at the end": [1.0] * 2000 + [math.nan],
    "NaN and huge": [math.nan, FLOAT_MAX, 0.0] * 5,
}
# A signalling NaN, one whose only mantissa bit is the lowest, and a negative one with all bits.
ODD_NANS = [0x7F800001, 0xFF800001, 0x7FA00000, 0xFFFFFFFF, 0x7F80FF00]


def tensor(values: list[float]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64).astype(np.float32))


@cache
def gradient_once(n: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng([n, seed])
    return torch.from_numpy((rng.laplace(0.0, 1e-2, n) * 10.0 ** rng.integers(-3, 3, n)).astype(np.float32))


def gradient(n: int, seed: int = 0) -> torch.Tensor:
    return gradient_once(n, seed).clone()


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits."""
    return left.dtype == right.dtype and left.numpy().tobytes() == right.numpy().tobytes()


def decoded(codec: Codec, payload: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.full((n,), 7.0)
    codec.decode(payload, out)
    return out


def samples() -> Iterator[torch.Tensor]:
    yield from (gradient(n) for n in LENGTHS)
    yield from (tensor(values) for values in (FINITE | NONFINITE).values())
    yield torch.tensor(np.array(ODD_NANS * 7, dtype=np.uint32).view(np.float32))


def check_contract(codec: Codec, x: torch.Tensor) -> None:
    """Sizes, bound and non-finite policy on one chunk."""
    n = x.numel()
    payload = codec.encode(x)
    assert payload.numel() <= codec.max_nbytes(n)
    y = decoded(codec, payload, n)
    assert not codec.EXACT or same(y, x)
    bound = codec.bound(x)
    assert not math.isnan(bound)
    assert bound >= 0.0
    finite = x.isfinite()
    assert not y[~finite].isfinite().any(), "a non-finite value became a number"
    # A block or chunk may be marked as NaN, but only where the chunk holds something that is not finite.
    kept = finite & ~y.isnan() if not finite.all() else finite
    if bound < math.inf:
        assert y[kept].isfinite().all(), "a finite value became infinite or NaN"
        error = (y[kept].double() - x[kept].double()).abs()
        assert not error.numel() or float(error.max()) <= bound


@pytest.fixture(params=EVERY, scope="module")
def codec(request: pytest.FixtureRequest) -> Codec:
    return make(request.param)


class TestValue:
    def test_the_spec_comes_back(self, codec: Codec) -> None:
        assert make(str(codec)) == codec
        assert str(make(str(codec))) == str(codec)

    def test_equal_codecs_are_one_value(self, codec: Codec) -> None:
        other = make(str(codec))
        assert other is not codec
        assert len({codec, other, copy.deepcopy(codec), pickle.loads(pickle.dumps(codec))}) == 1
        assert other.fingerprint == codec.fingerprint

    def test_nothing_can_be_assigned(self, codec: Codec) -> None:
        with pytest.raises(AttributeError):
            codec.name = "other"  # type: ignore[misc]


class TestArguments:
    @for_each(
        "x, complaint",
        {
            "2-D": (torch.zeros(4, 4), r"float32 tensor of shape \(4, 4\)"),
            "float64": (torch.zeros(4, dtype=torch.float64), "float64"),
            "strided": (torch.zeros(8)[::2], "non-contiguous"),
            "device": (torch.zeros(4, device="meta"), "meta"),
            "0-D": (torch.tensor(1.0), r"shape \(\)"),
            "list": ([1.0, 2.0], "list"),
        },
    )
    def test_a_chunk_of_the_wrong_kind_is_refused(
        self, codec: Codec, x: torch.Tensor, complaint: str
    ) -> None:
        payload = codec.encode(torch.zeros(4))
        for call in (
            codec.encode,
            lambda x: codec.decode(payload, x),
            lambda x: codec.decode_add(payload, x),
        ):
            with pytest.raises(TensorError, match=complaint):
                call(x)

    @for_each(
        "payload",
        {
            "float32": torch.zeros(4),
            "2-D": torch.zeros(4, 4, dtype=torch.uint8),
            "strided": torch.zeros(8, dtype=torch.uint8)[::2],
            "bytes": b"1234",
        },
    )
    def test_a_payload_of_the_wrong_kind_is_refused(self, codec: Codec, payload: torch.Tensor) -> None:
        for call in (codec.decode, codec.decode_add):
            with pytest.raises(TensorError, match=r"expected a .* for payload, got"):
                call(payload, torch.zeros(4))
        with pytest.raises(TensorError, match=r"expected a .* for out, got"):
            codec.encode(torch.zeros(1), out=payload)

    def test_too_small_an_out_is_refused(self, codec: Codec) -> None:
        need = codec.max_nbytes(100)
        with pytest.raises(TensorError, match=f"at least {need} bytes in out for 100 elements"):
            codec.encode(torch.zeros(100), out=torch.zeros(need - 1, dtype=torch.uint8))

    def test_the_payload_is_a_view_of_out(self, codec: Codec) -> None:
        for n in LENGTHS:
            x = gradient(n)
            fresh = codec.encode(x)
            for filler in (0x00, 0xFF):
                out = torch.full((codec.max_nbytes(n) + 9,), filler, dtype=torch.uint8)
                payload = codec.encode(x, out)
                assert payload.numel() == 0 or payload.data_ptr() == out.data_ptr()
                assert same(payload, fresh)
                assert (out[codec.max_nbytes(n) :] == filler).all(), "written past max_nbytes"

    def test_nothing_but_the_output_is_written(self, codec: Codec) -> None:
        for n in LENGTHS:
            x = gradient(n)
            before = x.clone()
            payload = codec.encode(x)
            kept = payload.clone()
            for call in (codec.decode, codec.decode_add):
                room = torch.full((n + 40,), 7.0)
                call(payload, room[20 : 20 + n])
                assert (room[:20] == 7.0).all()
                assert (room[20 + n :] == 7.0).all()
            assert same(x, before)
            assert same(payload, kept)

    def test_payloads_need_no_alignment(self, codec: Codec) -> None:
        x = torch.cat([torch.zeros(1), gradient(333)])[1:]
        payload = codec.encode(x)
        for offset in (1, 2, 3):
            out = torch.zeros(codec.max_nbytes(333) + offset, dtype=torch.uint8)[offset:]
            assert same(codec.encode(x, out), payload)
            assert same(decoded(codec, out[: payload.numel()], 333), decoded(codec, payload, 333))


class TestGuarantees:
    def test_contiguous_tensors_of_odd_strides(self, codec: Codec) -> None:
        check_contract(codec, torch.tensor([0.5, 1.0, 2.0])[::3])
        check_contract(codec, torch.from_numpy(np.zeros(0, dtype=np.float32)))

    @for_each("n", [*LENGTHS, THREADED])
    def test_gradients_of_every_length(self, codec: Codec, n: int) -> None:
        check_contract(codec, gradient(n))

    @for_each("name", list(FINITE | NONFINITE))
    def test_special_values(self, codec: Codec, name: str) -> None:
        x = tensor((FINITE | NONFINITE)[name])
        for n in (x.numel(), 1, 5):
            check_contract(codec, x[:n].clone())

    def test_odd_nans(self, codec: Codec) -> None:
        check_contract(codec, torch.tensor(np.array(ODD_NANS, dtype=np.uint32).view(np.float32)))
        for pattern in ODD_NANS:
            x = gradient(50)
            x.view(torch.int32)[17] = int(np.uint32(pattern).astype(np.int32))
            check_contract(codec, x)

    def test_zeros_come_back_as_zeros(self, codec: Codec) -> None:
        for n in LENGTHS:
            assert same(decoded(codec, codec.encode(torch.zeros(n)), n), torch.zeros(n))

    def test_the_bound_leaves_out_what_is_not_finite(self, codec: Codec) -> None:
        assert 0.0 <= codec.bound(torch.empty(0)) < math.inf
        assert codec.bound(torch.full((5,), math.nan)) <= codec.bound(torch.zeros(5))
        assert codec.bound(torch.tensor([math.nan, 0.5, math.inf])) < math.inf

    @settings(max_examples=25, deadline=None)
    @given(patterns=st.lists(st.integers(0, 2**32 - 1), max_size=70))
    def test_any_bit_patterns(self, codec: Codec, patterns: list[int]) -> None:
        check_contract(codec, torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32)))

    @settings(max_examples=25, deadline=None)
    @given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=70))
    def test_any_finite_values(self, codec: Codec, values: list[float]) -> None:
        check_contract(codec, tensor(values))


class TestDecodeAdd:
    def test_it_is_decode_then_add(self, codec: Codec) -> None:
        for x in samples():
            payload = codec.encode(x)
            acc = gradient(x.numel(), seed=1)
            acc[::5] = -0.0
            expected = acc + decoded(codec, payload, x.numel())
            codec.decode_add(payload, acc)
            assert same(acc, expected)

    def test_a_long_chunk(self, codec: Codec) -> None:
        payload = codec.encode(gradient(THREADED))
        acc = gradient(THREADED, seed=1)
        expected = acc + decoded(codec, payload, THREADED)
        codec.decode_add(payload, acc)
        assert same(acc, expected)


class TestSameEverywhere:
    @for_each("target", _native.available_targets())
    def test_every_target_gives_the_bytes_of_scalar(self, codec: Codec, target: str) -> None:
        for x in samples():
            acc = gradient(x.numel(), seed=1)
            with _native.use_target("scalar"):
                payload = codec.encode(x)
                plain = decoded(codec, payload, x.numel())
                total = acc.clone()
                codec.decode_add(payload, total)
            with _native.use_target(target):
                assert same(codec.encode(x), payload)
                assert same(decoded(codec, payload, x.numel()), plain)
                codec.decode_add(payload, acc)
                assert same(acc, total)

    @for_each("target", _native.available_targets())
    def test_every_number_of_threads_gives_the_same_bytes(
        self, codec: Codec, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x = gradient(THREADED)
        results = []
        for where, threads in (("scalar", "1"), (target, "1"), (target, "3")):
            monkeypatch.setenv("GRADWIRE_THREADS", threads)
            with _native.use_target(where):
                payload = codec.encode(x)
                acc = gradient(THREADED, seed=1)
                codec.decode_add(payload, acc)
                results.append((payload, decoded(codec, payload, THREADED), acc))
        for payload, plain, acc in results[1:]:
            assert same(payload, results[0][0])
            assert same(plain, results[0][1])
            assert same(acc, results[0][2])

    def test_flushed_subnormals_of_the_caller_change_nothing(self, codec: Codec) -> None:
        x = torch.cat([tensor(FINITE["subnormals"]), tensor(FINITE["smallest normals"]), tensor([1e-37] * 5)])
        payload = codec.encode(x)
        plain = decoded(codec, payload, x.numel())
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush subnormals")
        try:
            flushed = codec.encode(x)
            out = decoded(codec, payload, x.numel())
        finally:
            torch.set_flush_denormal(False)
        assert same(flushed, payload)
        assert same(out, plain)


def refused(codec: Codec, payload: torch.Tensor, n: int) -> bool:
    """Return whether both decoders refuse, and then leave their output as it was."""
    refusals = []
    for call in (codec.decode, codec.decode_add):
        out = torch.full((n,), 7.0)
        try:
            call(payload, out)
            refusals.append(False)
        except PayloadError:
            assert (out == 7.0).all(), "a refused payload was written"
            refusals.append(True)
    assert len(set(refusals)) == 1
    return refusals[0]


class TestMalformed:
    @for_each("target", _native.available_targets())
    def test_a_payload_of_the_wrong_length_is_refused(self, codec: Codec, target: str) -> None:
        with _native.use_target(target):
            for x in samples():
                n = x.numel()
                payload = codec.encode(x)
                assert refused(codec, torch.cat([payload, payload.new_zeros(1)]), n)
                if payload.numel():
                    assert refused(codec, payload[:-1], n)
                    assert refused(codec, payload[: payload.numel() // 2], n)
                    assert refused(codec, payload[:0], n)

    def test_a_long_payload_of_the_wrong_length_is_refused(self, codec: Codec) -> None:
        payload = codec.encode(gradient(THREADED))
        extended = torch.cat([payload, payload.new_zeros(1)])
        for wrong in (payload[:-1], payload[: payload.numel() // 2], extended):
            out = torch.full((THREADED,), 7.0)
            with pytest.raises(PayloadError, match="elements"):
                codec.decode(wrong, out)
            assert (out == 7.0).all()

    def test_garbage_is_refused_or_decoded_alike_everywhere(self, codec: Codec) -> None:
        rng = np.random.default_rng(3)
        for n in (1, 5, 8, 33, 100, 1000):
            valid = codec.encode(gradient(n)).numpy()
            for trial in range(30):
                if trial % 3 == 0:
                    garbage = rng.integers(0, 256, rng.integers(0, codec.max_nbytes(n) + 9)).astype(np.uint8)
                elif trial % 3 == 1:
                    garbage = rng.integers(0, 256, valid.size).astype(np.uint8)
                else:
                    garbage = valid.copy()
                    garbage[rng.integers(0, valid.size)] ^= 1 << rng.integers(0, 8)
                self._check_alike(codec, torch.from_numpy(garbage), n)

    def _check_alike(self, codec: Codec, payload: torch.Tensor, n: int) -> None:
        outcomes = set()
        for target in _native.available_targets():
            with _native.use_target(target):
                if refused(codec, payload, n):
                    outcomes.add(b"refused")
                else:
                    outcomes.add(decoded(codec, payload, n).numpy().tobytes())
        assert len(outcomes) == 1, outcomes
