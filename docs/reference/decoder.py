"""Read gradwire's frames and payloads in plain Python: the standard, for readers and other implementations.

    python decoder.py SPEC <frame     checks a frame, and prints its floats

It reads all codecs but `lossless`, which is Zstandard; `ecsq` is in entropy_decoder.py. Internally, a float
is its 32 bits, so that NaNs keep their bits.
"""

import math
import struct
import sys

NAN, INFINITY, LARGEST = 0x7FC00000, 0x7F800000, 0x7F7FFFFF
SIZES = (0, 1, 2, 4)  # of the data behind a tag


def word(value, beyond=INFINITY):  # the bits of a float32; `beyond` where no float32 is large enough
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return beyond | (value < 0) << 31


def value(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def product(q, scale, beyond=INFINITY):  # of a number and the bits of a scale; NaN marks a block
    return NAN if math.isnan(value(scale)) else word(q * value(scale), beyond)


def words(data, code="I"):
    return [*struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)]


def packed(
    data, bits, count, signed=False
):  # numbers of some bits, one after the other, the lowest bit first
    whole = int.from_bytes(data, "little")
    numbers = [whole >> bits * i & (1 << bits) - 1 for i in range(count)]
    return [each - (each >> bits - 1 << bits) for each in numbers] if signed else numbers


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 & -(crc & 1))
    return crc ^ 0xFFFFFFFF


def half(bits):
    if bits >> 10 & 31 < 31:
        return word(struct.unpack("<e", struct.pack("<H", bits))[0])
    return bits >> 15 << 31 | INFINITY | (bits & 1023) << 13 | (0x400000 if bits & 1023 else 0)


def cut(data, n, kept):  # truncate, bitpack
    if kept <= 8 and n and data[-1]:
        return [NAN] * n
    return [top << 32 - kept for top in packed(data, kept, n)]


def inceptionn(data, n, k, bounded):
    units, out, at = (0, 2.0 ** (math.ceil(k / 2) - k - 7 if bounded else -7), 2.0**-15), [], 0
    for _ in range(-(-n // 8)):
        tags, at = packed(data[at : at + 2], 2, 8), at + 2
        for tag in tags:
            bits, at = int.from_bytes(data[at : at + SIZES[tag]], "little"), at + SIZES[tag]
            if tag < 3:  # a sign and a fraction
                fraction = bits & (1 << 8 * tag >> 1) - 1
                bits = word((-fraction if bits > fraction else fraction) * units[tag])
            out.append(bits)
    return out[:n]


def errbound(data, n, exponents, block):
    at, out = -(-n // 4), []
    for i, tag in enumerate(packed(data[:at], 2, n)):
        piece, at = data[at : at + SIZES[tag]], at + SIZES[tag]
        q = int.from_bytes(piece, "little", signed=tag < 3)
        out.append(q if tag == 3 else word(math.ldexp(q, exponents[i // block] + 1)))
    return out


def fp8(code, exponent):
    magnitude = 2 * (code & 7) if code & 0x78 == 0 else (8 + (code & 7)) << (code >> 3 & 15)
    value = math.ldexp(magnitude, exponent - 144)
    return NAN if exponent == 255 else word(-value if code >> 7 else value)


def decode(spec, data, n):
    """Return the n floats of a payload."""
    name, _, rest = spec.partition(":")
    first, *others = rest.split(",")
    option = dict(part.split("=") for part in rest.split(",") if "=" in part)
    block = int(option.get("block", {"fp8": 256, "errbound": max(n, 1)}.get(name, 1024)))
    count = -(-n // block)
    if name == "identity":
        return words(data)
    if name in ("fp16", "bf16"):
        return [half(each) if name == "fp16" else each << 16 for each in words(data, "H")]
    if name in ("truncate", "bitpack"):
        return cut(data, n, 32 - int(first) if name == "truncate" else 8 * int(first))
    if name == "inceptionn":
        return inceptionn(data, n, int(first[3:]), "bounded" in others)
    if name == "errbound":
        exponents = [each - 127 for each in data[:count]] if "rel" in option else [int(first[2:])]
        return errbound(data[count:] if "rel" in option else data, n, exponents, block)
    if name == "fp8":
        return [fp8(code, data[i // block]) for i, code in enumerate(data[count:])]
    if name == "quantize":
        codes = packed(data[4 * count :], int(first), n, signed=True)
        return [product(q, words(data[: 4 * count])[i // block]) for i, q in enumerate(codes)]
    if name == "bfp":
        bits, size = (int(each) for each in first.split("x"))
        width, out = 1 + (bits + 1) * size // 8, []
        for at in range(0, len(data), width):
            unit = NAN if data[at] == 255 else word(2.0 ** (data[at] - 126 - bits))
            out += [product(q, unit) for q in packed(data[at + 1 : at + width], bits + 1, size, signed=True)]
        return out[:n]
    if name == "terngrad":
        return [product((0, 1, -1)[code], words(data[:4])[0]) for code in packed(data[4:], 2, n)]
    if name == "topk":
        k = len(data) // 8
        kept = dict(zip(words(data[: 4 * k]), words(data[4 * k :])))
        return [NAN if 0xFFFFFFFF in kept else kept.get(i, 0) for i in range(n)]
    import entropy_decoder

    return entropy_decoder.ecsq(data, n, block, "foot" in others)


def read(frame, spec):
    """Check a frame and return its floats."""
    magic, version, _, _, n, size, _, fingerprint, checksum, own = struct.unpack("<4sBBHIIIIII", frame[:32])
    payload = frame[32 : 32 + size]
    if (magic, version, own) != (b"GRDW", 1, crc32c(frame[:28])) or checksum != crc32c(payload):
        raise ValueError("expected a complete frame of version 1")
    if fingerprint != crc32c(spec.encode()):
        raise ValueError(f"the frame's codec isn't {spec}")
    return decode(spec, payload, n)


if __name__ == "__main__":
    print(*map(value, read(sys.stdin.buffer.read(), sys.argv[1])))
