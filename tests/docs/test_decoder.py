"""The decoder of the standard, in plain Python: golden vectors, and what gradwire decodes, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gradwire import _native
from gradwire.codecs import TABLE, parse
from gradwire.wire import Header
from support.cases import for_each
from support.project import DOCS, TESTS

FOLDER = DOCS / "reference"
NAMES = [row.name for row in TABLE if row.name != "lossless"]


@pytest.fixture(scope="module")
def decoder() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        import decoder  # type: ignore[import-not-found, unused-ignore]

        yield decoder
    finally:
        sys.path.remove(str(FOLDER))


def bits_of(spec: str, payload: bytes, count: int) -> list[int]:
    """Return what gradwire decodes."""
    out = torch.empty(count)
    parse(spec).decode(torch.tensor(list(payload), dtype=torch.uint8), out)
    return [bits & 0xFFFFFFFF for bits in out.view(torch.int32).tolist()]


def payload_of(spec: str, x: torch.Tensor) -> bytes:
    return bytes(parse(spec).encode(x).tolist())


@pytest.mark.parametrize("name", NAMES)
def test_it_decodes_the_golden_vectors(decoder: Any, name: str) -> None:
    vectors = json.loads((TESTS / "codecs" / "golden" / f"{name}.json").read_text())
    assert len(vectors) >= 2
    for vector in vectors:
        wanted = [int(word, 16) for word in vector["decoded"].split()]
        payload = bytes.fromhex(vector["payload"])
        assert decoder.decode(vector["spec"], payload, len(wanted)) == wanted, vector["spec"]


@pytest.mark.parametrize("spec", [spec for row in TABLE for spec in row.codec.EXAMPLES if row.name in NAMES])
@for_each("count", [0, 1, 9, 1500])
def test_it_decodes_what_gradwire_does(decoder: Any, spec: str, count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)) * 1e-2
    x[::7] *= 1e6
    payload = payload_of(spec, x)
    assert decoder.decode(spec, payload, count) == bits_of(spec, payload, count)


def test_it_decodes_every_number_of_two_bytes(decoder: Any) -> None:
    payload = b"".join(number.to_bytes(2, "little") for number in range(1 << 16))
    for spec in ("fp16", "bf16"):
        assert decoder.decode(spec, payload, 1 << 16) == bits_of(spec, payload, 1 << 16)


def test_it_decodes_blocks_of_the_entropy_coder(decoder: Any) -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    x[100], x[4000:4100] = 3e3, 0.0
    for spec in ("ecsq:1", "ecsq:0.03125", "ecsq:1,foot", "ecsq:4,block=64"):
        payload = payload_of(spec, x)
        assert decoder.decode(spec, payload, 5000) == bits_of(spec, payload, 5000)


def frame_of(spec: str, x: torch.Tensor) -> bytes:
    codec, payload = parse(spec), payload_of(spec, x)
    crc = _native.crc32c(torch.tensor(list(payload), dtype=torch.uint8))
    return Header(codec.wire_id, x.numel(), len(payload), 5, codec.fingerprint, crc).pack() + payload


def test_it_reads_frames_and_refuses_others(decoder: Any) -> None:
    frame = frame_of("fp8", torch.tensor([1.0, -0.3, 0.001]))
    assert [decoder.value(bits) for bits in decoder.read(frame, "fp8")] == [1.0, -0.3125, 0.0009765625]
    assert decoder.read(frame + b"more", "fp8") == decoder.read(frame, "fp8")
    for place in (0, 4, 9, 24, 30, 33):
        altered = bytearray(frame)
        altered[place] ^= 1
        with pytest.raises(ValueError, match="expected a complete frame"):
            decoder.read(bytes(altered), "fp8")
    with pytest.raises(ValueError, match="expected a complete frame"):
        decoder.read(frame[:-1], "fp8")
    with pytest.raises(ValueError, match="the frame's codec isn't fp8:block=16"):
        decoder.read(frame, "fp8:block=16")


def test_it_is_a_program_for_plain_python() -> None:
    frame = frame_of("identity", torch.tensor([1.0, -2.0]))
    program = [sys.executable, "-S", "-I", str(FOLDER / "decoder.py"), "identity"]  # -S: no installed package
    assert subprocess.run(program, input=frame, capture_output=True, check=True).stdout == b"1.0 -2.0\n"


@pytest.mark.parametrize("name", ["decoder.py", "entropy_decoder.py"])
def test_it_is_short(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.count("\n") <= 150
    assert "numpy" not in text
    assert "import gradwire" not in text
