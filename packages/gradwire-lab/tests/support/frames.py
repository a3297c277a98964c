"""Ethernet frames with IPv4 and TCP, made and read by the book (RFC 791, RFC 9293), without native/."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
ETHERNET = bytes.fromhex("020000000001 020000000002 0800")
USUAL_OPTIONS = bytes.fromhex("020405b4 0402 080a 00000001 00000000 01 030307")


def checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass(frozen=True)
class Segment:
    """A TCP segment in its packet."""

    sequence: int
    payload: bytes = b""
    flags: int = ACK
    source: str = "10.9.0.1"
    destination: str = "10.9.0.2"
    ports: tuple[int, int] = (4000, 5000)
    acknowledged: int = 77
    options: bytes = b""
    tos: int = 0x28
    protocol: int = 6
    identification: int = 9
    urgent: int = 0

    def answer(self, **changes: object) -> Segment:
        """Return a segment of the other direction."""
        turned = replace(self, source=self.destination, destination=self.source, ports=self.ports[::-1])
        return replace(turned, **changes)  # type: ignore[arg-type]

    def frame(self) -> bytes:
        assert len(self.options) % 4 == 0
        length = 20 + len(self.options) + len(self.payload)
        words = (20 + len(self.options)) // 4
        tcp = (
            struct.pack(
                "!HHIIBBHHH",
                *self.ports,
                self.sequence % 2**32,
                self.acknowledged,
                words << 4,
                self.flags,
                5000,
                0,
                self.urgent,
            )
            + self.options
            + self.payload
        )
        pseudo = packed(self.source) + packed(self.destination) + struct.pack("!HH", self.protocol, length)
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        head = struct.pack(
            "!BBHHHBBH", 0x45, self.tos, 20 + length, self.identification, 0x4000, 64, self.protocol, 0
        )
        head += packed(self.source) + packed(self.destination)
        return ETHERNET + head[:10] + struct.pack("!H", checksum(head)) + head[12:] + tcp


def packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def read(frame: bytes) -> Segment:
    """Return the segment of a frame; its lengths and checksums must be right."""
    assert frame[:14] == ETHERNET
    ip = frame[14:34]
    assert checksum(ip) == 0
    _, tos, total, identification, _, _, protocol, _ = struct.unpack("!BBHHHBBH", ip[:12])
    assert total == len(frame) - 14
    tcp = frame[34:]
    assert checksum(ip[12:20] + struct.pack("!HH", protocol, len(tcp)) + tcp) == 0
    *ports, sequence, acknowledged, words, flags, _, _, urgent = struct.unpack("!HHIIBBHHH", tcp[:20])
    end = 4 * (words >> 4)
    return Segment(
        sequence,
        tcp[end:],
        flags,
        ".".join(map(str, ip[12:16])),
        ".".join(map(str, ip[16:20])),
        (ports[0], ports[1]),
        acknowledged,
        tcp[20:end],
        tos,
        protocol,
        identification,
        urgent,
    )
