"""The packets of cards: where their parts are, as in the software NIC (native/nic)."""

from __future__ import annotations

from amaranth import Cat, Value

from gradwire.codecs import Inceptionn

ETHERNET_NBYTES = 14
IP_NBYTES = 20
MOST_HEADERS = 94
"""Bytes of the headers of a packet without IP options, at most."""
FIXED_NBYTES = 54
"""Bytes up to the end of TCP's fixed header."""
TCP = 6
COMPRESSED = 253
"""The IP protocol of compressed packets, "use for experimentation and testing" (RFC 3692)."""
TOS = 0x28
DSCP = 0xFC
"""The bits of the type of service that routers leave alone."""
UNUSUAL_FLAGS = 0x26
"""SYN, RST and URG, with which nothing is compressed."""
SHIM_NBYTES = 8
"""The bytes before a compressed body: its payload's length, version and phase, wire id, CRC32C."""
VERSION = 1
SUM_AT = 50
"""TCP's checksum, in a packet without IP options."""
ADDRESSES_AT = 26
"""The first bytes of both checksums: the addresses of IP."""


def big(value: Value, at: int, nbytes: int) -> Value:
    """Return the big-endian number at a byte of a value."""
    return Cat(value.word_select(at + byte, 8) for byte in reversed(range(nbytes)))


def swapped(value: Value) -> Value:
    """Return the bytes of a 16-bit value in the other order."""
    return Cat(value[8:16], value[:8])


def head_of(phase: Value) -> Value:
    """Return the bytes before the first whole float of a payload that begins with byte ``phase`` of one."""
    return (-phase)[:2]


def folded(value: Value) -> Value:
    """Return a sum of at most 31 bits with its carries added, which may leave one in bit 16."""
    return (value[:16] + value[16:])[:17]


def frame_words(mtu: int, width: int) -> int:
    """Return the words of the largest frame whose payload is compressed or restored."""
    return -(-(ETHERNET_NBYTES + mtu) * 8 // width)


def offer(codec: Inceptionn) -> bytes:
    """Return the bytes by which cards know each other's settings."""
    _, parameters = codec.compiled
    return bytes([VERSION, codec.wire_id, *parameters])
