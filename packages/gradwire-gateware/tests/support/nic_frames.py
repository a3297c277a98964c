"""Ethernet frames, made and checked with ``struct``."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np

from gradwire._native import _core
from gradwire_gateware.nic.packets import FIXED_NBYTES
from gradwire_gateware.software_nic.card import Settings

PORTS = (40000, 5000)


def checksum(data: bytes) -> int:
    """Return the checksum of IP and TCP (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp_frame(
    payload: bytes,
    *,
    sequence: int = 1,
    tos: int = 0x28,
    flags: int = 0x18,
    options: bytes = b"",
    ip_options: bytes = b"",
    fragment: int = 0x4000,
    protocol: int = 6,
    ports: tuple[int, int] = PORTS,
    trailer: bytes = b"",
    vlan: bytes = b"",
) -> bytes:
    """Return a frame from 10.9.0.1 to 10.9.0.2, with right checksums."""
    addresses = bytes([10, 9, 0, 1, 10, 9, 0, 2])
    words = (20 + len(options)) // 4
    tcp = (
        struct.pack(">HHIIBBHHH", *ports, sequence & 0xFFFF_FFFF, 77, words << 4, flags, 500, 0, 0) + options
    )
    pseudo = addresses + struct.pack(">HH", 6, len(tcp) + len(payload))
    tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp + payload)) + tcp[18:]
    ip_words = 5 + len(ip_options) // 4
    total = 4 * ip_words + len(tcp) + len(payload)
    ip = struct.pack(">BBHHHBBH", 0x40 | ip_words, tos, total, 0x1234, fragment, 64, protocol, 0)
    ip += addresses + ip_options
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return bytes(range(12)) + vlan + b"\x08\x00" + ip + tcp + payload + trailer


def software_nic(spec: str) -> Any:
    """Return what handles the frames of ``gradwire nic``."""
    name, first, second, wire_id = Settings(spec).kernel
    return _core.NicEngine(name, first, second, wire_id, 0x28)


def connected(nic: Any, first: int) -> None:
    """Let a software NIC see a handshake, after which the host's first byte has this sequence number."""
    (syn,) = nic.handle(True, tcp_frame(b"", sequence=first - 1, flags=2), 0)
    option = syn[FIXED_NBYTES : FIXED_NBYTES + 8]
    answer = bytearray(tcp_frame(b"", flags=0x12, options=option, ports=PORTS[::-1]))
    answer[26:30], answer[30:34] = answer[30:34], answer[26:30]
    nic.handle(False, bytes(answer), 0)


def stream_frames(count: int, first: int, seed: int, mtu: int = 1500) -> list[bytes]:
    """Return the frames of a stream of floats, cut anywhere, with and without TCP's options."""
    draw, generator = random.Random(seed), np.random.default_rng(seed)
    frames, sequence = [], first
    for _ in range(count):
        options = draw.choice([b"", b"\1\1\x08\x0a" + bytes(8), bytes([1] * 4 * draw.randint(0, 10))])
        most = mtu - 40 - len(options)
        nbytes = draw.choice([most, most, draw.randint(1, 20), draw.randint(1, most)])
        scale = draw.choice([1e-4, 2e-3, 2e-3, 0.1, 10.0])
        floats = generator.laplace(0, scale, nbytes // 4 + 2).astype("<f4").tobytes()
        at = (sequence - first) % 4
        trailer = draw.randbytes(draw.choice([0, 0, 0, 6, 100]))
        payload = floats[at : at + nbytes]
        frames.append(tcp_frame(payload, sequence=sequence, options=options, trailer=trailer))
        sequence += nbytes
    return frames


def other_frames(first: int) -> list[bytes]:
    """Return frames that pass a card from its host unchanged, and the software NIC, except for the first."""
    floats = np.full(100, 2.0**-9, "<f4").tobytes()
    whole = tcp_frame(floats, sequence=first)
    damaged = bytearray(whole)
    damaged[100] ^= 4
    return [
        tcp_frame(floats, sequence=first, ip_options=bytes(4)),
        whole[:150],
        whole[:60] + b"\0" * 12,
        bytes(damaged),
        tcp_frame(floats, sequence=first, tos=0),
        tcp_frame(floats, sequence=first, tos=0x2C),
        tcp_frame(floats, sequence=first, fragment=0x2000),
        tcp_frame(floats, sequence=first, fragment=3),
        tcp_frame(floats, sequence=first, protocol=17),
        tcp_frame(floats, sequence=first, protocol=253),
        tcp_frame(floats, sequence=first, ports=(40000, 5001)),
        tcp_frame(floats, sequence=first, vlan=b"\x81\x00\0\1"),
        whole[:12] + b"\x86\xdd" + whole[14:],
        *(tcp_frame(floats, sequence=first, flags=0x10 | flag) for flag in (2, 4, 0x20)),
        tcp_frame(b"", sequence=first),
        tcp_frame(floats[:8], sequence=first),
        *(whole[:size] for size in (1, 14, 15, 31, 32, 33, 34, 53, 54, 63, 64, 65)),
        tcp_frame(bytes(3000), sequence=first),
        random.Random(1).randbytes(700),
    ]
