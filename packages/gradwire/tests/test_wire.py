from __future__ import annotations

import re
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import FrameError
from gradwire.wire import (
    AVERAGE,
    HEADER_NBYTES,
    LATE,
    MAX_FRAME_NBYTES,
    Expected,
    Header,
    OutOfStepError,
    check_not_before,
    check_step,
    flags_of,
    open_frame,
    parting_frame,
    renumber_frame,
    seal_frame,
    step_of,
)
from support.cases import for_each
from support.project import DOCS

DOCUMENT = DOCS / "wire-format.md"
U32 = st.integers(0, 2**32 - 1)
PAYLOAD = bytes(range(1, 11))
EXPECTED = Expected(codec_id=4, fingerprint=0xCAFEBABE, count=7, max_payload_nbytes=12, sequence=3)
NAMES = {2: "bf16", 4: "errbound"}


def crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, one bit at a time: an oracle that shares nothing with the kernels."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def sealed(payload: bytes = PAYLOAD, spare: int = 0, **changes: int) -> torch.Tensor:
    fields = {"codec_id": 4, "fingerprint": 0xCAFEBABE, "count": 7, "sequence": 3} | changes
    frame = torch.zeros(HEADER_NBYTES + len(payload) + spare, dtype=torch.uint8)
    frame[HEADER_NBYTES : HEADER_NBYTES + len(payload)] = torch.tensor(list(payload), dtype=torch.uint8)
    return seal_frame(frame, len(payload), **fields)


def header_bytes(frame: torch.Tensor) -> bytearray:
    return bytearray(frame[:HEADER_NBYTES].tolist())


def with_header(frame: torch.Tensor, offset: int, value: bytes) -> torch.Tensor:
    """Overwrite a field and repair the header's checksum, as a foreign program would have written it."""
    header = header_bytes(frame)
    header[offset : offset + len(value)] = value
    header[28:] = struct.pack("<I", crc32c(bytes(header[:28])))
    return torch.cat((torch.tensor(list(header), dtype=torch.uint8), frame[HEADER_NBYTES:]))


@given(st.builds(Header, st.integers(0, 255), U32, U32, U32, U32, U32, st.sampled_from([0, AVERAGE])))
def test_every_header_is_read_as_it_was_written(header: Header) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_NBYTES
    assert Header.unpack(packed) == header
    assert struct.unpack("<I", packed[28:])[0] == crc32c(packed[:28])


def test_open_returns_the_payload_as_a_view() -> None:
    frame = sealed()
    payload = open_frame(frame, EXPECTED)
    assert bytes(payload.tolist()) == PAYLOAD
    assert payload.data_ptr() == frame.data_ptr() + HEADER_NBYTES


def test_what_follows_the_payload_is_ignored() -> None:
    frame = torch.cat((sealed(), torch.full((100,), 7, dtype=torch.uint8)))
    assert bytes(open_frame(frame, EXPECTED).tolist()) == PAYLOAD


def test_an_empty_payload_is_a_frame_of_a_header() -> None:
    frame = sealed(b"", count=0)
    assert frame.numel() == HEADER_NBYTES
    assert open_frame(frame, replace(EXPECTED, count=0, max_payload_nbytes=0)).numel() == 0


def test_seal_leaves_the_payload_where_it_lies_and_ignores_the_rest_of_the_buffer() -> None:
    frame = sealed(spare=50)
    assert frame.numel() == HEADER_NBYTES + len(PAYLOAD)
    assert bytes(open_frame(frame, EXPECTED).tolist()) == PAYLOAD


def test_a_forwarded_frame_has_another_number_and_the_same_payload_checksum() -> None:
    frame = sealed()
    before = Header.unpack(bytes(header_bytes(frame)))
    forwarded = renumber_frame(torch.cat((frame, torch.zeros(9, dtype=torch.uint8))), 99)
    assert forwarded.numel() == frame.numel()
    assert Header.unpack(bytes(header_bytes(forwarded))) == replace(before, sequence=99)
    assert bytes(open_frame(forwarded, replace(EXPECTED, sequence=99)).tolist()) == PAYLOAD


@for_each("bit", range(8 * (HEADER_NBYTES + len(PAYLOAD))))
def test_any_flipped_bit_is_refused(bit: int) -> None:
    frame = sealed()
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        open_frame(frame, EXPECTED)


@for_each("nbytes", range(HEADER_NBYTES + len(PAYLOAD)))
def test_any_shorter_frame_is_truncated(nbytes: int) -> None:
    with pytest.raises(FrameError, match="truncated"):
        open_frame(sealed()[:nbytes], EXPECTED)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (
            with_header(sealed(), 0, b"HTTP"),
            r"not a gradwire frame: expected b'GRDW' at its start, got b'HTTP'",
        ),
        (with_header(sealed(), 4, b"\x02"), r"expected a frame of version 1, got one of version 2"),
        (
            sealed(flags=AVERAGE),
            r"expected a frame of a sum, got one of an average; make the same calls in the same order",
        ),
        (sealed(codec_id=2), r"codec differs: expected errbound, got bf16"),
        (sealed(codec_id=200), r"codec differs: expected errbound, got number 200"),
        (sealed(fingerprint=1), r"parameters of the codec errbound differ: expected .*, got 0x00000001"),
        (sealed(sequence=4), r"out of order: expected frame 3, got frame 4"),
        (sealed(sequence=2), r"out of order: expected frame 3, got frame 2"),
        (sealed(count=8), r"expected a frame of 7 elements, got 8"),
        (sealed(bytes(13)), r"oversized: expected a payload of at most 12 bytes, got one of 13"),
    ],
)
def test_what_is_not_expected_is_refused_with_the_reason(frame: torch.Tensor, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        open_frame(frame, EXPECTED, NAMES)


def test_an_altered_length_is_a_header_checksum_error_and_is_never_believed() -> None:
    frame = sealed()
    frame[15] = 0xFF
    with pytest.raises(FrameError, match="header's checksum"):
        open_frame(frame, EXPECTED)


def test_an_altered_payload_is_a_payload_checksum_error() -> None:
    frame = sealed()
    frame[-1] ^= 1
    with pytest.raises(FrameError, match="payload's checksum"):
        open_frame(frame, EXPECTED)


def test_the_document_shows_the_bytes_that_are_sent() -> None:
    text = DOCUMENT.read_text()
    shown = bytes.fromhex(" ".join(re.findall(r"^\| `((?:[0-9a-f]{2} ?)+)` \|", text, re.MULTILINE)))
    floats = struct.pack("<2f", 1.0, -2.0)
    frame = sealed(floats, codec_id=0, fingerprint=crc32c(b"identity"), count=2, sequence=5)
    assert shown == bytes(frame.tolist())
    assert shown[24:28] == struct.pack("<I", crc32c(floats))


def test_the_document_names_the_largest_frame() -> None:
    assert f"{MAX_FRAME_NBYTES // 2**20} MiB" in DOCUMENT.read_text()


@given(st.integers(0, 2**40), st.integers(-1000, 1000))
def test_a_step_is_read_as_it_was_written_where_the_receivers_is_near(step: int, by: int) -> None:
    flags = flags_of(step)
    assert flags % 2 == 0
    assert flags < 1 << 16
    near = max(step + by, 0)
    assert step_of(flags, near) == (step if step < LATE or near >= LATE else LATE)


def test_a_late_step_that_is_far_from_the_own_is_not_guessed() -> None:
    assert step_of(flags_of(100_000), 3) == LATE
    assert step_of(flags_of(100_000), 42_000) == LATE
    assert step_of(flags_of(None), 3) is None


def test_a_frame_of_another_step_is_refused_before_its_codec() -> None:
    expected = replace(EXPECTED, flags=flags_of(12), codec_id=9)
    with pytest.raises(OutOfStepError) as caught:
        open_frame(sealed(flags=flags_of(11)), expected)
    assert (caught.value.places, caught.value.has_left) == (((None, 11),), False)
    for flags in (0, flags_of(12), flags_of(12) | AVERAGE):
        with pytest.raises(FrameError, match="the codec differs"):
            open_frame(sealed(flags=flags), expected)


@pytest.mark.parametrize("step", [1, 12, LATE - 1, LATE, 3 * (LATE + 1)])
def test_a_frame_repeated_or_lost_at_the_end_of_a_step_is_not_a_rank_at_another_step(step: int) -> None:
    """``EXPECTED`` has the sequence number 3, the next one of a peer that is at another step."""
    expected = replace(EXPECTED, flags=flags_of(step))
    for came, number in ((step - 1, 2), (step + 1, 4)):
        with pytest.raises(
            FrameError, match=f"out of order: expected frame 3, got frame {number} of another step"
        ) as caught:
            open_frame(sealed(flags=flags_of(came), sequence=number), expected)
        assert not isinstance(caught.value, OutOfStepError)
    for came, number in ((step - 1, 0), (step - 1, 3), (step - 1, 4), (step + 1, 0), (step + 1, 3)):
        with pytest.raises(OutOfStepError):
            open_frame(sealed(flags=flags_of(came), sequence=number), expected)


@pytest.mark.parametrize("step", [None, 4])
def test_a_last_frame_is_told_from_all_others(step: int | None) -> None:
    for places, has_left, count in (
        ([(1, 3)], True, 1),
        ([(1, 3), (0, 4)], False, 2),
        ([(1, 3), (0, 4)], True, 3),
    ):
        frame = parting_frame(places, has_left=has_left)
        assert Header.unpack(bytes(header_bytes(frame))).count == count
        with pytest.raises(OutOfStepError) as caught:
            open_frame(frame, replace(EXPECTED, flags=flags_of(step)))
        assert (caught.value.places, caught.value.has_left) == (tuple(places), has_left)
    for damaged in (with_header(frame, 8, b"\x01"), with_header(frame, 12, b"\x08"), frame[:40]):
        with pytest.raises(FrameError, match=r"ranks in a last frame|checksum is wrong|truncated"):
            check_step(damaged, step)


@pytest.mark.parametrize("step", [5, LATE, 50_000, 3 * (LATE + 1)])
def test_only_frames_of_earlier_steps_end_a_wait_for_none(step: int) -> None:
    for frame in (
        sealed(flags=flags_of(step)),
        sealed(flags=flags_of(step + 1)),
        sealed(),
        parting_frame([(1, step)], has_left=True),
    ):
        check_not_before(frame, step, 1)
    for frame, places in (
        (sealed(flags=flags_of(step - 1)), ((1, step - 1),)),
        (parting_frame([(1, step - 1)], has_left=True), ((1, step - 1),)),
        (parting_frame([(2, step - 1), (0, step)], has_left=False), ((2, step - 1), (0, step))),
    ):
        with pytest.raises(OutOfStepError) as caught:
            check_not_before(frame, step, 1)
        assert caught.value.places == places
