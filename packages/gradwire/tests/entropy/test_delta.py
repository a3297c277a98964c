"""Deltas of weights, bit for bit: all words against all kinds of bases, versions, and payloads gone wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import _native
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import WordName, round_masters
from gradwire.errors import PayloadError, SpecError, TensorError, VersionError
from support import rans

TARGETS = _native.available_targets()
SECTION = 1 << 20
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[Any]
SPECIAL = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0xFFFF, 0x7FFF, 0x3F80],
    np.uint16,
)


def as_masters(words: Words) -> Floats:
    """Return float32 masters whose bfloat16 words are these (a NaN's become quiet)."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def rounded(masters: Floats) -> Words:
    """Round to nearest even by exact fractions of the bits: the definition."""
    bits = masters.view(np.uint32).astype(np.uint64)
    kept, dropped = bits >> np.uint64(16), bits & np.uint64(0xFFFF)
    up = (dropped > 0x8000) | ((dropped == 0x8000) & (kept % np.uint64(2) == 1))
    return np.where(np.isnan(masters), kept | np.uint64(0x40), kept + up).astype(np.uint16)


def words_of(weights: torch.Tensor) -> Words:
    return weights.view(torch.int16).numpy().view(np.uint16).copy()


def tensor(values: Floats) -> torch.Tensor:
    return torch.from_numpy(values.copy())


class Pair:
    """An encoder and a decoder that hold some weights."""

    def __init__(self, masters: Floats, dtype: WordName = "bf16", *, entropy: bool = True) -> None:
        self.encoder = DeltaEncoder(tensor(masters), dtype, entropy=entropy)
        self.decoder = DeltaDecoder(dtype)
        self.weights = torch.empty(len(masters), dtype=self.encoder.base.dtype)
        self.version = 0
        self.send(masters)

    def send(self, masters: Floats, *, full: bool = False, checked: bool = False) -> torch.Tensor:
        self.version += 1
        payload = self.encoder.encode(tensor(masters), self.version, full=full, checked=checked)
        assert self.decoder.apply(payload, self.weights) == self.version
        assert torch.equal(self.weights.view(torch.uint8), self.encoder.base.view(torch.uint8))
        return payload


def body_of(payload: torch.Tensor) -> bytes:
    return payload.numpy().tobytes()[28:]


def send_on_all_targets(before: Floats, after: Floats, *, entropy: bool = True) -> bytes:
    payloads = []
    for target in TARGETS:
        with _native.use_target(target):
            pair = Pair(before, entropy=entropy)
            payloads.append(pair.send(after).numpy().tobytes())
            assert (words_of(pair.weights) == rounded(after)).all()
    assert len(set(payloads)) == 1
    return payloads[0]


def fine_tuned(n: int, lr: float, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng([n, seed])
    before = (rng.normal(size=n) * 0.05).astype(np.float32)
    return before, (before + lr * rng.normal(size=n)).astype(np.float32)


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("base", [*SPECIAL.tolist(), None])
def test_all_words_survive_against_all_kinds_of_bases(base: int | None, *, entropy: bool) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    shuffled = np.random.default_rng(0).permutation(words)
    before = shuffled if base is None else np.full_like(words, base)
    send_on_all_targets(as_masters(before), as_masters(words), entropy=entropy)


def test_words_are_the_masters_rounded_by_torch() -> None:
    rng = np.random.default_rng(1)
    masters = rng.integers(0, 1 << 32, 50_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dropped = np.tile(np.array([0x7FFF, 0x8000, 0x8001, 0], np.uint32), len(SPECIAL))
    masters[: len(dropped)] = (SPECIAL.astype(np.uint32).repeat(4) << 16 | dropped).view(np.float32)
    pair = Pair(masters)
    finite = ~np.isnan(masters)
    theirs = words_of(tensor(masters).bfloat16())
    assert (words_of(pair.weights)[finite] == theirs[finite]).all()
    assert np.isnan(pair.weights.float().numpy()[~finite]).all()


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("lr", [1e-7, 1e-5, 1e-3, 10.0])
def test_bodies_are_those_of_the_text(lr: float, *, entropy: bool) -> None:
    for n in (*range(70), 127, 128, 129, 3001):
        before, after = fine_tuned(n, lr)
        if n > 20:
            after[n // 2 : n // 2 + 6] = [math.nan, -0.0, math.inf, -math.inf, 0.0, 1e-45]
        payload = send_on_all_targets(before, after, entropy=entropy)
        assert rans.apply_body(payload[28:], rounded(before).tolist(), 2) == rounded(after).tolist()


@given(st.data())
def test_any_masters_survive(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 300))
    any_bits = st.lists(st.integers(0, 2**32 - 1), min_size=n, max_size=n)
    before, after = (np.array(data.draw(any_bits), np.uint32).view(np.float32) for _ in range(2))
    send_on_all_targets(before, after)


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("lr", [1e-9, 1e-5, 1.0])
def test_float32_weights_survive_bit_for_bit(lr: float, *, entropy: bool) -> None:
    for n in (0, 1, 5, 1003, 40_001):
        before, after = fine_tuned(n, lr)
        after[: n // 3 : 7] = np.array([0x7F800001], np.uint32).view(np.float32)  # a signaling NaN stays so
        payloads = []
        for target in TARGETS:
            with _native.use_target(target):
                pair = Pair(before, "fp32", entropy=entropy)
                payloads.append(pair.send(after).numpy().tobytes())
                assert pair.weights.numpy().tobytes() == after.tobytes()
        assert len(set(payloads)) == 1
        if n < 2000:
            words = before.view(np.uint32).tolist()
            assert rans.apply_body(payloads[0][28:], words, 4) == after.view(np.uint32).tolist()


@pytest.mark.parametrize("threads", ["1", "2", "5"])
@pytest.mark.parametrize("n", [SECTION - 1, SECTION, SECTION + 1, 3 * SECTION + 4099])
def test_sections_are_those_of_every_number_of_threads(
    n: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = fine_tuned(n, 3e-5)
    monkeypatch.setenv("GRADWIRE_THREADS", "1")
    payload = Pair(before).send(after, checked=True)
    monkeypatch.setenv("GRADWIRE_THREADS", threads)
    pair = Pair(before)
    assert torch.equal(pair.send(after, checked=True), payload)
    assert (words_of(pair.weights) == rounded(after)).all()


def test_large_deltas_come_close_to_the_entropy_of_the_differences() -> None:
    before, after = fine_tuned(SECTION, 3e-5)
    moves = np.array([rans.ordered(w, 16) for w in range(1 << 16)])
    d = moves[rounded(after)] - moves[rounded(before)]
    counts = np.unique(d, return_counts=True)[1]
    bound = (counts * np.log2(len(d) / counts)).sum()
    assert 0.98 * bound < 8 * Pair(before).send(after).numel() < 1.02 * bound


def test_full_copies_take_fewer_bits_than_the_words() -> None:
    before, after = fine_tuned(100_000, 1.0)
    pair = Pair(before)
    coded = pair.send(after, full=True)
    assert coded.numel() < 0.75 * 2 * len(after)
    plain = Pair(before, entropy=False).send(after, full=True)
    assert plain.numel() == 28 + 2 * len(after)
    assert body_of(plain) == rounded(after).tobytes()
    assert body_of(Pair(before, "fp32", entropy=False).send(after, full=True)) == after.tobytes()


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_bounded_payload_is_no_larger_than_the_words(dtype: WordName, *, entropy: bool) -> None:
    generator = np.random.default_rng(0)
    before, after, last = (
        generator.integers(0, 1 << 32, 5000, dtype=np.uint64).astype(np.uint32).view(np.float32)
        for _ in range(3)
    )
    pair = Pair(before, dtype, entropy=entropy)
    word = pair.weights.element_size()
    payload = pair.encoder.encode(tensor(after), 2, bounded=True, checked=True)
    assert payload.numel() == 36 + word * 5000, "a plain copy"
    assert pair.decoder.apply(payload, pair.weights) == 2
    new = DeltaDecoder(dtype)
    new.apply(payload, torch.empty_like(pair.weights))  # any receiver can apply it
    pair.version = 2
    pair.send(last)
    assert pair.send(last, checked=True).numel() < 1400, "at most two bits a weight where nothing moves"


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_ends_that_hold_a_version_begin_with_a_delta(dtype: WordName) -> None:
    before, after = fine_tuned(3000, 1e-9)
    held = Pair(before, dtype).weights
    encoder = DeltaEncoder(tensor(after), dtype, base=held.clone(), version=7)
    decoder, weights = DeltaDecoder(dtype, version=7), held.clone()
    payload = encoder.encode(tensor(after), 8)
    assert payload.numel() < held.nbytes / 3
    assert decoder.apply(payload, weights) == 8
    wanted = torch.empty_like(held)
    round_masters(tensor(after), wanted)
    assert torch.equal(weights.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(weights.view(torch.uint8), encoder.base.view(torch.uint8))
    with pytest.raises(TensorError, match=r"expected a 1-D contiguous .* for base"):
        DeltaEncoder(tensor(after), dtype, base=held.double())


def test_masters_are_rounded_to_words_by_the_definition() -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 50_000, dtype=np.uint64).astype(np.uint32)
    masters = bits.view(np.float32)
    words, exact = torch.empty(50_000, dtype=torch.bfloat16), torch.empty(50_000)
    round_masters(tensor(masters), words)
    round_masters(tensor(masters), exact)
    assert (words_of(words) == rounded(masters)).all()
    assert exact.numpy().tobytes() == masters.tobytes()


def test_two_bit_classes_take_two_bits() -> None:
    before, after = fine_tuned(100_000, 1e-7)
    assert Pair(before, entropy=False).send(after).numel() < 1.05 * 100_000 / 4
    assert Pair(before).send(before).numel() < 60


def test_a_receiver_that_missed_a_delta_refuses_the_next_and_takes_a_full_copy() -> None:
    masters = [fine_tuned(5000, 1e-4, seed)[0] for seed in range(4)]
    pair = Pair(masters[0])
    pair.encoder.encode(tensor(masters[1]), 2)  # lost
    held = words_of(pair.weights)
    delta = pair.encoder.encode(tensor(masters[2]), 3)
    with pytest.raises(
        VersionError,
        match=r"expected a delta from version 1 or a full copy, got a delta from version 2; send",
    ):
        pair.decoder.apply(delta, pair.weights)
    assert (words_of(pair.weights) == held).all()
    pair.version = 3
    pair.send(masters[3], full=True)
    pair.send(masters[0])


def test_a_new_receiver_wants_a_full_copy() -> None:
    pair = Pair(fine_tuned(100, 1.0)[0])
    delta = pair.encoder.encode(tensor(fine_tuned(100, 1.0)[1]), 2)
    with pytest.raises(
        VersionError, match=r"expected a full copy, got a delta from version .; send a full copy"
    ):
        DeltaDecoder().apply(delta, pair.weights)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_weights_that_someone_changed_fail_the_check_until_a_full_copy(dtype: WordName) -> None:
    before, after = fine_tuned(5000, 1e-3)
    pair = Pair(before, dtype)
    pair.send(after, checked=True)
    pair.weights[17] = 1.0
    payload = pair.encoder.encode(tensor(before), 3, checked=True)
    with pytest.raises(VersionError, match=r"expected the weights of version 3.*send a full copy"):
        pair.decoder.apply(payload, pair.weights)
    with pytest.raises(VersionError, match="expected a full copy, got a delta from version"):
        pair.decoder.apply(pair.encoder.encode(tensor(after), 4), pair.weights)
    pair.version = 4
    pair.send(before, full=True, checked=True)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
def test_hash_is_that_of_the_text(n: int) -> None:
    data = np.random.default_rng(n).integers(0, 256, 2 * n).astype(np.uint8)
    for target in TARGETS:
        with _native.use_target(target):
            assert _native.hash64(torch.from_numpy(data)) == rans.hash64(data.tobytes())


def test_hash_changes_with_every_bit() -> None:
    data = torch.zeros(300, dtype=torch.uint8)
    seen = {_native.hash64(data), _native.hash64(data[:-1])}
    for bit in range(8 * 300):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(_native.hash64(data))
        data[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 2 + 8 * 300


def decoder_at(version: int) -> DeltaDecoder:
    decoder = DeltaDecoder()
    decoder.version = version
    return decoder


def outcome(payload: bytes, weights: torch.Tensor) -> str:
    """Apply on all targets, which must agree, and a refused payload must change nothing."""
    found = set()
    for target in TARGETS:
        decoder, own = decoder_at(1), weights.clone()
        with _native.use_target(target):
            try:
                decoder.apply(torch.frombuffer(bytearray(payload), dtype=torch.uint8), own)
                said = words_of(own).tobytes().hex()
            except (PayloadError, VersionError) as error:
                said = str(error)
        refused = "expected" in said and "got other weights" not in said
        assert not refused or (decoder.version == 1 and (words_of(own) == words_of(weights)).all())
        assert decoder.version is not None or "got other weights" in said
        found.add(said)
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_every_truncation_is_refused(*, entropy: bool, full: bool) -> None:
    before, after = fine_tuned(1201, 1e-4)
    pair = Pair(before, entropy=entropy)
    weights = pair.weights.clone()
    payload = pair.send(after, full=full, checked=True).numpy().tobytes()
    for nbytes in range(1, len(payload)):
        assert "expected a" in outcome(payload[:nbytes], weights)
    assert "expected a" in outcome(payload + b"\0", weights)


@pytest.mark.parametrize("entropy", [False, True])
def test_single_flipped_bits_never_pass_the_check(*, entropy: bool) -> None:
    before, after = fine_tuned(1201, 1e-4)
    pair = Pair(before, entropy=entropy)
    weights = pair.weights.clone()
    payload = pair.send(after, checked=True).numpy().tobytes()
    wanted = outcome(payload, weights)
    for bit in range(8 * len(payload)):
        altered = bytearray(payload)
        altered[bit // 8] ^= 1 << bit % 8
        found = outcome(bytes(altered), weights)
        in_version = 20 <= bit // 8 < 28
        hash_gone = bit == 17  # the flag; then the hash is the body's first bytes
        assert in_version == (found == wanted) or hash_gone
        assert not hash_gone or "expected a " in found


def test_unused_classes_must_be_zero() -> None:
    before, after = fine_tuned(5, 1e-3)
    pair = Pair(before, entropy=False)
    weights = pair.weights.clone()
    payload = bytearray(pair.send(after).numpy().tobytes())
    classes_end = 28 + 4 + 12 + 1 + 2
    payload[classes_end - 1] |= 0x40
    assert "unused bits of its last class" in outcome(bytes(payload), weights)


def test_what_cannot_be_encoded_is_refused_in_a_sentence() -> None:
    masters = torch.zeros(10)
    with pytest.raises(SpecError, match="expected 'bf16' or 'fp32' for a delta's dtype, got 'fp16'"):
        DeltaEncoder(masters, "fp16")  # type: ignore[arg-type]
    encoder = DeltaEncoder(masters)
    with pytest.raises(SpecError, match="expected 10 master weights"):
        encoder.encode(torch.zeros(11), 1)
    with pytest.raises(TensorError, match="float32"):
        encoder.encode(masters.double(), 1)
    for version in (-1, 2**64):
        with pytest.raises(SpecError, match="from 0 to 2\\^64 - 1"):
            encoder.encode(masters, version)
    assert encoder.version is None
    encoder.encode(masters, 5)
    with pytest.raises(VersionError, match="expected a version above 5 for a delta"):
        encoder.encode(masters, 5)
    encoder.encode(masters, 5, full=True)


def test_another_tensor_or_dtype_is_refused() -> None:
    payload = DeltaEncoder(torch.zeros(10)).encode(torch.zeros(10), 1)
    with pytest.raises(PayloadError, match="expected a delta of 11 weights of 2 bytes"):
        DeltaDecoder().apply(payload, torch.zeros(11, dtype=torch.bfloat16))
    with pytest.raises(PayloadError, match="expected a delta of 10 weights of 4 bytes"):
        DeltaDecoder("fp32").apply(payload, torch.zeros(10))
    with pytest.raises(TensorError, match="bfloat16"):
        DeltaDecoder().apply(payload, torch.zeros(10))


def test_encoding_stays_within_the_callers_memory() -> None:
    rng = np.random.default_rng(0)
    masters = rng.integers(0, 1 << 32, 999, dtype=np.uint64).astype(np.uint32).view(np.float32)
    for target in TARGETS:
        encoder = DeltaEncoder(tensor(masters), entropy=False)
        out = torch.full((encoder.max_nbytes + 64,), 0xA5, dtype=torch.uint8)
        with _native.use_target(target):
            encoder.encode(torch.zeros(999), 1, out=out)
            payload = encoder.encode(tensor(masters), 2, checked=True, out=out)
        assert payload.data_ptr() == out.data_ptr()
        assert (out[encoder.max_nbytes :] == 0xA5).all()
