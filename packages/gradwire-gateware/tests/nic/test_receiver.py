import random
import struct
from typing import Any

import pytest

from gradwire._native import _core
from gradwire.codecs import parse
from gradwire.codecs.inceptionn import Inceptionn
from gradwire_gateware.nic.packets import COMPRESSED, FIXED_NBYTES, SUM_AT
from gradwire_gateware.nic.receiver import Receiver
from support.axi import STALLS, Bench, bench
from support.hardware_chunks import EXHAUSTIVE
from support.nic_frames import checksum, connected, other_frames, software_nic, stream_frames, tcp_frame
from support.nic_hardware import handled

FIRST = 77
CELLS = [("inceptionn:2^-10", "random", 512), ("inceptionn:2^-6,bounded", "bursts", 256)]
MORE = [(spec, stalls, width) for spec in Inceptionn.EXAMPLES for stalls in STALLS for width in (256, 512)]
COUNT = 60 if EXHAUSTIVE else 16


def receiver(spec: str, width: int) -> Bench:
    codec = parse(spec)
    assert isinstance(codec, Inceptionn)
    return bench(Receiver, codec, width)


def compressed(nic: Any, count: int, seed: int) -> list[bytes]:
    connected(nic, FIRST)
    return [frame for each in stream_frames(count, FIRST, seed) for frame in nic.handle(True, each, 0)]


def arrived(nic: Any, frames: list[bytes]) -> list[bytes]:
    return [frame for each in frames for frame in nic.handle(False, each, 0)]


@pytest.mark.parametrize(("spec", "stalls", "width"), CELLS + MORE if EXHAUSTIVE else CELLS)
def test_frames_are_restored_as_by_the_software_nic(spec: str, stalls: str, width: int) -> None:
    nic = software_nic(spec)
    draw = random.Random(1)
    frames = [frame + draw.randbytes(draw.choice([0, 0, 9, 70])) for frame in compressed(nic, COUNT, width)]
    expected = arrived(nic, frames)
    assert len(expected) == COUNT
    assert handled(receiver(spec, width), frames, COUNT, stalls).packets == expected


@pytest.mark.parametrize("width", [256, 512])
def test_damaged_packets_are_dropped_and_all_else_passes(width: int) -> None:
    nic = software_nic("inceptionn:2^-10")
    draw = random.Random(width)
    good = [frame for frame in compressed(nic, 40, 5) if frame[23] == COMPRESSED and len(frame) < 400]
    frames = []
    for _ in range(300 if EXHAUSTIVE else 20):
        frame = bytearray(draw.choice(good))
        if draw.random() < 0.2:
            frame = frame[: draw.randint(34, len(frame) - 1)]
        else:
            frame[draw.randrange(26 if draw.random() < 0.7 else 14, len(frame))] ^= 1 << draw.randrange(8)
        frames += [bytes(frame), draw.choice(good)] if draw.random() < 0.3 else [bytes(frame)]
    has_no_options = [frame for frame in frames if frame[14] & 15 == 5]
    frames = [*has_no_options, *other_frames(FIRST), good[0]]
    expected = arrived(nic, frames)
    assert len(expected) < len(frames)
    run = handled(receiver("inceptionn:2^-10", width), frames, len(expected), "random")
    assert run.packets == expected


def sealed(frame: bytes, payload_nbytes: int, body: bytes) -> bytes:
    """Return a compressed frame of the same connection with another body and a right CRC."""
    shim = struct.pack(">HB", payload_nbytes, 0x10) + frame[FIXED_NBYTES + 3 : FIXED_NBYTES + 4]
    settings = bytes([1, frame[FIXED_NBYTES + 3], 117, 0])
    crc = _core.crc32c_of_bytes(settings + frame[26:FIXED_NBYTES] + shim + body)
    total = 40 + 8 + len(body)
    ip = frame[14:16] + struct.pack(">H", total) + frame[18:24] + b"\0\0" + frame[26:34]
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return frame[:14] + ip + frame[34:FIXED_NBYTES] + shim + struct.pack(">I", crc) + body


@pytest.mark.parametrize("width", [256, 512])
def test_bodies_that_are_no_payload_are_dropped(width: int) -> None:
    nic = software_nic("inceptionn:2^-10")
    connected(nic, FIRST)
    (good,) = nic.handle(True, tcp_frame(bytes(400), sequence=FIRST), 0)
    body = good[FIXED_NBYTES + 8 :]
    assert sealed(good, 400, body) == good
    several = good[:SUM_AT] + b"\5\x94" + good[SUM_AT + 2 :]
    frames = [
        sealed(good, 400, bytes(1440)),  # 46 kB of zeros
        sealed(good, 400, bytes(24)),
        sealed(good, 400, bytes(28)),
        sealed(good, 65535, bytes(1440)),
        sealed(good, 3, b"abc"),
        sealed(good, 0, b""),
        sealed(good, 400, b""),
        sealed(several, 400, body),
    ]
    assert arrived(nic, frames) == []
    frames = [frame for bad in frames for frame in (bad, good)]
    run = handled(receiver("inceptionn:2^-10", width), frames, len(frames) // 2, "none")
    assert run.packets == arrived(nic, [good]) * (len(frames) // 2)
