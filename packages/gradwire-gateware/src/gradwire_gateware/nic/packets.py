"""The layout of NICs' packets, which is the same as in the software NIC (native/nic)."""

from __future__ import annotations

from amaranth import Cat, Value

from gradwire.codecs import Inceptionn

ETHERNET_NBYTES = 14
IP_NBYTES = 20
MOST_HEADERS = 94
"""The largest size of all headers of a packet without IP options."""
FIXED_NBYTES = 54
"""The number of bytes up to the end of TCP's fixed header."""
TCP = 6
COMPRESSED = 253
"""The IP protocol of compressed packets, "use for experimentation and testing" (RFC 3692)."""
TOS = 0x28
DSCP = 0xFC
"""The bits of the type of service that routers don't change."""
UNUSUAL_FLAGS = 0x26
"""The flags SYN, RST, and URG. Packets with any of these flags aren't compressed."""
SHIM_NBYTES = 8
"""The size of a compressed body's prefix: payload length, version and phase, wire id, and CRC32C."""
VERSION = 1
SUM_AT = 50
"""The offset of TCP's checksum in a packet without IP options."""
ADDRESSES_AT = 26
"""The offset of the IP addresses. The addresses are the first bytes that TCP's checksum and the CRC cover."""


def big(value: Value, at: int, nbytes: int) -> Value:
    """Return the big-endian number of ``nbytes`` bytes at byte ``at`` of a value."""
    return Cat(value.word_select(at + byte, 8) for byte in reversed(range(nbytes)))


def swapped(value: Value) -> Value:
    """Return a 16-bit value with its bytes swapped."""
    return Cat(value[8:16], value[:8])


def head_of(phase: Value) -> Value:
    """Return the number of bytes before the first whole float of a payload that begins at byte ``phase``."""
    return (-phase)[:2]


def folded(value: Value) -> Value:
    """Return a sum of up to 31 bits with its halves added; bit 16 of the result may be set."""
    return (value[:16] + value[16:])[:17]


def frame_words(mtu: int, width: int) -> int:
    """Return the number of words of the largest frame whose payload is compressed or decompressed."""
    return -(-(ETHERNET_NBYTES + mtu) * 8 // width)


def offer(codec: Inceptionn) -> bytes:
    """Return the bytes that identify a NIC's settings to its peer."""
    _, parameters = codec.compiled
    return bytes([VERSION, codec.wire_id, *parameters])
