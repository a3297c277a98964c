"""A payload in a frame: whatever bit is flipped on the way, the door refuses it before a codec sees it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradwire.codecs import TABLE
from gradwire.errors import FrameError
from gradwire.wire import HEADER_NBYTES, Expected, open_frame, seal_frame
from support.every_codec import EVERY, PLANS, make

FIRST = [*(row.codec.EXAMPLES[0] for row in TABLE), *PLANS]
COUNT = 37
SEQUENCE = 5


def sealed(spec: str) -> tuple[torch.Tensor, Expected]:
    codec = make(spec)
    x = torch.from_numpy(np.random.default_rng(9).laplace(0.0, 1e-2, COUNT).astype(np.float32))
    buffer = torch.zeros(HEADER_NBYTES + codec.max_nbytes(COUNT), dtype=torch.uint8)
    payload = codec.encode(x, out=buffer[HEADER_NBYTES:])
    frame = seal_frame(
        buffer,
        payload.numel(),
        codec_id=codec.wire_id,
        fingerprint=codec.fingerprint,
        count=COUNT,
        sequence=SEQUENCE,
    )
    expected = Expected(codec.wire_id, codec.fingerprint, COUNT, codec.max_nbytes(COUNT), SEQUENCE)
    return frame, expected


@pytest.mark.parametrize("spec", FIRST)
def test_the_frame_as_it_was_sealed_opens(spec: str) -> None:
    frame, expected = sealed(spec)
    codec = make(spec)
    payload = open_frame(frame, expected)
    assert payload.data_ptr() == frame.data_ptr() + HEADER_NBYTES
    codec.decode(payload, torch.zeros(COUNT))


@pytest.mark.parametrize("spec", FIRST)
def test_every_flipped_bit_is_refused(spec: str) -> None:
    frame, expected = sealed(spec)
    for bit in range(8 * frame.numel()):
        altered = frame.clone()
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            open_frame(altered, expected)


@pytest.mark.parametrize("spec", FIRST)
def test_every_truncated_frame_is_refused(spec: str) -> None:
    frame, expected = sealed(spec)
    for nbytes in range(frame.numel()):
        with pytest.raises(FrameError):
            open_frame(frame[:nbytes], expected)


@pytest.mark.parametrize("spec", EVERY)
def test_another_spec_is_refused(spec: str) -> None:
    frame, expected = sealed(spec)
    for other in EVERY:
        codec = make(other)
        if codec != make(spec):
            differs = Expected(codec.wire_id, codec.fingerprint, COUNT, expected.max_payload_nbytes, SEQUENCE)
            with pytest.raises(FrameError, match=r"codec|parameters"):
                open_frame(frame, differs)
