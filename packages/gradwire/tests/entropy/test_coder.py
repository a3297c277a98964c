"""The entropy coder against a decoder in plain Python, Shannon's bound, and payloads gone wrong."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import _native, entropy
from gradwire.errors import PayloadError, TensorError
from support import rans

TARGETS = _native.available_targets()
Symbols = npt.NDArray[np.uint8]


def tensor(data: bytes | Symbols) -> torch.Tensor:
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    return torch.from_numpy(array.copy())


def encode(symbols: Symbols) -> bytes:
    """Encode on all targets, which must agree."""
    payloads = []
    for target in TARGETS:
        with _native.use_target(target):
            payloads.append(entropy.encode(tensor(symbols)).numpy().tobytes())
    assert len(set(payloads)) == 1
    return payloads[0]


def outcome(payload: bytes, n: int) -> str | bytes:
    """Decode on all targets, which must agree on symbols or reason."""
    found: set[str | bytes] = set()
    for target in TARGETS:
        out = torch.full((n,), 0xA5, dtype=torch.uint8)
        with _native.use_target(target):
            try:
                entropy.decode(tensor(payload), out)
                found.add(out.numpy().tobytes())
            except PayloadError as error:
                found.add(str(error))
    assert len(found) == 1
    return found.pop()


def assert_survives(symbols: Symbols) -> bytes:
    payload = encode(symbols)
    assert outcome(payload, len(symbols)) == symbols.tobytes()
    assert len(payload) <= entropy.max_nbytes(len(symbols))
    return payload


def skewed(n: int, alphabet: int, seed: int = 0) -> Symbols:
    rng = np.random.default_rng([n, alphabet, seed])
    return (rng.geometric(0.5, n) - 1).clip(0, alphabet - 1).astype(np.uint8)


def shannon_bits(symbols: Symbols) -> float:
    counts = np.unique(symbols, return_counts=True)[1]
    return float((counts * np.log2(len(symbols) / counts)).sum())


@pytest.mark.parametrize("alphabet", [1, 2, 3, 7])
def test_every_length_survives(alphabet: int) -> None:
    for n in (*range(300), 511, 512, 513, 1023, 1025, 4095, 4097):
        symbols = skewed(n, alphabet)
        assert rans.decode_symbols(assert_survives(symbols)) == symbols.tobytes()


@pytest.mark.parametrize("alphabet", [2, 5, 16, 100, 256])
@pytest.mark.parametrize("n", [700, 5000, 20_011])
def test_streams_are_those_of_the_text(n: int, alphabet: int) -> None:
    rng = np.random.default_rng(n + alphabet)
    symbols = (rng.beta(1, 4, n) * alphabet).astype(np.uint8)
    payload = assert_survives(symbols)
    assert rans.decode_symbols(payload) == symbols.tobytes()


@given(st.binary(max_size=1500), st.integers(1, 6))
def test_any_bytes_survive(data: bytes, repeats: int) -> None:
    symbols = np.frombuffer(data * repeats, np.uint8)
    assert rans.decode_symbols(assert_survives(symbols)) == symbols.tobytes()


@pytest.mark.parametrize("symbol", [0, 1, 255])
def test_equal_symbols_take_one_byte(symbol: int) -> None:
    payload = assert_survives(np.full(100_000, symbol, np.uint8))
    assert payload[8:] == bytes([2, 0, 0, 0, 1, symbol])


@pytest.mark.parametrize("n", [1, 100, 100_000])
def test_symbols_without_a_pattern_stay_as_they_are(n: int) -> None:
    symbols = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)
    payload = assert_survives(symbols)
    assert payload[8:] == (n + 1).to_bytes(4, "little") + b"\0" + symbols.tobytes() or n == 1


@pytest.mark.parametrize("alphabet", [2, 4, 17, 256])
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, 6.0])
def test_large_inputs_come_close_to_the_bound_of_shannon(alphabet: int, power: float) -> None:
    rng = np.random.default_rng(alphabet)
    weights = np.arange(1, alphabet + 1, dtype=np.float64) ** -power
    symbols = rng.choice(alphabet, 1 << 18, p=weights / weights.sum()).astype(np.uint8)
    bits = 8 * len(assert_survives(symbols))
    bound = shannon_bits(symbols)
    assert bound * 0.999 <= bits <= 1.01 * bound + 8 * (12 + 1 + 128 + 2 * alphabet)


def test_a_rare_symbol_costs_little() -> None:
    symbols = np.zeros(1 << 18, np.uint8)
    symbols[12_345] = 200
    assert len(assert_survives(symbols)) < 250


@pytest.mark.parametrize("threads", ["1", "2", "3", "7"])
@pytest.mark.parametrize("n", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 5 * (1 << 18) + 77])
def test_blocks_are_those_of_every_number_of_threads(
    n: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    symbols = np.concatenate([skewed(n // 2, 9), np.full(n - n // 2, 3, np.uint8)])
    monkeypatch.setenv("GRADWIRE_THREADS", "1")
    payload = encode(symbols)
    monkeypatch.setenv("GRADWIRE_THREADS", threads)
    assert encode(symbols) == payload
    assert outcome(payload, n) == symbols.tobytes()


def test_every_truncation_is_refused() -> None:
    for n in (0, 1, 40, 1500):
        payload = encode(skewed(n, 9))
        for nbytes in range(len(payload)):
            assert "expected an entropy coding" in str(outcome(payload[:nbytes], n))
        assert "do not add up" in str(outcome(payload + b"\0", n))


def test_single_flipped_bits_are_refused_or_decode_alike() -> None:
    symbols = skewed(1500, 9)
    payload = encode(symbols)
    refused = 0
    for bit in range(8 * len(payload)):
        altered = bytearray(payload)
        altered[bit // 8] ^= 1 << bit % 8
        found = outcome(bytes(altered), len(symbols))
        assert found != symbols.tobytes()
        refused += isinstance(found, str)
    assert refused > 0.99 * 8 * len(payload)


@given(st.binary(max_size=400), st.integers(0, 300))
def test_any_bytes_as_a_block_are_refused_or_decode_alike(body: bytes, n: int) -> None:
    for mode in (b"", b"\0", b"\1", b"\2"):
        block = mode + body
        head = b"\1" + n.to_bytes(7, "little") + (len(block).to_bytes(4, "little") if n else b"")
        outcome(head + (block if n else b""), n)


def coded(n: int, table: bytes, stream: bytes) -> bytes:
    block = b"\2" + table + stream
    return b"\1" + n.to_bytes(7, "little") + len(block).to_bytes(4, "little") + block


@pytest.mark.parametrize(
    "table",
    [
        bytes([255, 255, 255]),  # more than all slots
        bytes([0, 3, 0, 3, 224, 0, 224, 0]),  # two runs of absent values
        bytes([192, 5, 255, 251]),  # a small frequency in two bytes
        bytes([0, 255, 224, 0]),  # a value above 255
        bytes([224, 0]),  # half of the slots
        b"",
        b"\0",
        bytes([224]),
    ],
)
def test_malformed_tables_are_refused(table: bytes) -> None:
    stream = (1 << 16).to_bytes(4, "little") * 32
    found = str(outcome(coded(64, table, stream if len(table) > 2 else b""), 64))
    assert "the table of a block is malformed" in found


def test_states_out_of_range_are_refused() -> None:
    table = bytes([224, 0, 224, 0])
    for state in (0, 1, (1 << 16) - 1):
        stream = state.to_bytes(4, "little") + (1 << 16).to_bytes(4, "little") * 31
        assert "do not end in their initial states" in str(outcome(coded(64, table, stream), 64))


def test_other_lengths_versions_and_dtypes_are_refused() -> None:
    payload = encode(skewed(100, 4))
    assert "a different number of symbols" in str(outcome(payload, 99))
    assert "its version byte is not 1" in str(outcome(b"\2" + payload[1:], 100))
    with pytest.raises(TensorError, match="uint8"):
        entropy.encode(torch.zeros(4))
    with pytest.raises(TensorError, match="expected at least 1013 bytes in out, got 10"):
        entropy.encode(torch.zeros(1000, dtype=torch.uint8), torch.zeros(10, dtype=torch.uint8))


def test_payload_is_the_front_of_the_callers_memory() -> None:
    symbols = tensor(skewed(5000, 4))
    out = torch.full((entropy.max_nbytes(5000) + 64,), 0xA5, dtype=torch.uint8)
    for target in TARGETS:
        with _native.use_target(target):
            payload = entropy.encode(symbols, out)
        assert payload.data_ptr() == out.data_ptr()
        assert (out[entropy.max_nbytes(5000) :] == 0xA5).all()
