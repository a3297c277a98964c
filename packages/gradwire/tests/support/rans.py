"""The entropy coder's decoder and the deltas' in plain Python, from the text of docs/weight_delta.md."""

from __future__ import annotations

BLOCK, SECTION, SLOTS, LOW, CODERS = 1 << 18, 1 << 20, 1 << 14, 1 << 16, 32


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def read_table(data: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """Return (symbol, frequency, start) of all symbols that occur, and the size of the table."""
    rows, at, symbol, start = [], 0, 0, 0
    while start < SLOTS:
        first, at = data[at], at + 1
        if first == 0:
            symbol, at = symbol + data[at] + 1, at + 1
            continue
        frequency = first
        if first >= 192:
            frequency, at = 256 * (first - 192) + data[at], at + 1
        rows.append((symbol, frequency, start))
        symbol, start = symbol + 1, start + frequency
    assert start == SLOTS
    return rows, at


def decode_stream(stream: bytes, rows: list[tuple[int, int, int]], n: int) -> bytes:
    of_slot = [row for row in rows for _ in range(row[1])]
    states = [number(stream[i : i + 4]) for i in range(len(stream) - 4 * CODERS, len(stream), 4)]
    words = [number(stream[i : i + 2]) for i in range(0, len(stream) - 4 * CODERS, 2)]
    symbols = bytearray()
    while len(symbols) < n:
        active = min(CODERS, n - len(symbols))
        for i in range(active):
            symbol, frequency, start = of_slot[states[i] % SLOTS]
            symbols.append(symbol)
            states[i] = frequency * (states[i] // SLOTS) + states[i] % SLOTS - start
        hungry = [i for i in range(active) if states[i] < LOW]
        taken = words[len(words) - len(hungry) :]
        words = words[: len(words) - len(hungry)]
        for i, word in zip(hungry, taken, strict=True):
            states[i] = states[i] * LOW + word
    assert words == []
    assert states == [LOW] * CODERS
    return bytes(symbols)


def multiply_nibbles(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the table of pairs: a slot each, and the others by the cumulative products of their nibbles."""
    frequency = {symbol: f for symbol, f, _ in rows}
    assert max(frequency) < 16
    present = [(low + 16 * high, frequency[low] * frequency[high]) for high in frequency for low in frequency]
    shared, before, found, start = SLOTS - len(present), 0, [], 0
    for symbol, product in present:
        share = (before + product) * shared // SLOTS**2 - before * shared // SLOTS**2 + 1
        found.append((symbol, share, start))
        before, start = before + product, start + share
    assert start == SLOTS
    return found


def decode_block(block: bytes, n: int, pairs: bool = False) -> bytes:
    mode, body = block[0], block[1:]
    if mode == 0:
        assert len(body) == n
        return body
    if mode == 1:
        assert len(body) == 1
        return body * n
    assert mode in ((2, 3) if pairs else (2,))
    rows, size = read_table(body)
    return decode_stream(body[size:], rows if mode == 2 else multiply_nibbles(rows), n)


def pieces(data: bytes, count: int) -> list[bytes]:
    """Return what a directory of ``count`` sizes announces."""
    at, found = 4 * count, []
    for i in range(count):
        size = number(data[4 * i : 4 * i + 4])
        found.append(data[at : at + size])
        at += size
    assert at == len(data)
    return found


def lengths(n: int, most: int) -> list[int]:
    return [min(most, n - first) for first in range(0, n, most)]


def decode_symbols(payload: bytes) -> bytes:
    assert payload[0] == 1
    sizes = lengths(number(payload[1:8]), BLOCK)
    blocks = pieces(payload[8:], len(sizes))
    return b"".join(decode_block(block, n) for block, n in zip(blocks, sizes, strict=True))


def ordered(word: int, bits: int) -> int:
    """Return a word's place in total order: -0 is -1, and +0 is 0."""
    top = 1 << (bits - 1)
    return word if word < top else top - 1 - word


def unordered(place: int, bits: int) -> int:
    """Return the word at a place, which wraps around like the words' integers."""
    place = (place + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return place if place >= 0 else (1 << (bits - 1)) - 1 - place


def read_section(section: bytes, n: int, nbytes: int) -> list[int]:
    """Return the difference of every weight."""
    blocks = pieces(section, 1 + nbytes)
    classes = decode_block(blocks[0], (n + 3) // 4)
    codes = [classes[i // 4] >> 2 * (i % 4) & 3 for i in range(n)]
    count = codes.count(3)
    planes = [decode_block(block, count) for block in blocks[1:]]
    escapes = iter(number(bytes(plane[i] for plane in planes)) for i in range(count))
    moves = [code if code < 3 else (3 + next(escapes)) % (1 << 8 * nbytes) for code in codes]
    return [u // 2 if u % 2 == 0 else -(u + 1) // 2 for u in moves]


def apply_body(body: bytes, words: list[int], nbytes: int) -> list[int]:
    """Return the words that a delta's body makes of these."""
    sizes = lengths(len(words), SECTION)
    sections = pieces(body, len(sizes))
    moves = [d for section, n in zip(sections, sizes, strict=True) for d in read_section(section, n, nbytes)]
    bits = 8 * nbytes
    return [unordered(ordered(word, bits) + d, bits) for word, d in zip(words, moves, strict=True)]


def hash64(data: bytes) -> int:
    """Return the hash of at most 2^21 bytes, folded as that of one piece."""

    def mix(x: int) -> int:
        return (x ^ x >> 32) * 0x9E3779B97F4A7C15 % (1 << 64)

    if not data:
        return 0
    lanes = list(range(16))
    padded = data + bytes(-len(data) % 128)
    for i in range(0, len(padded), 8):
        lane = i // 8 % 16
        lanes[lane] = mix(lanes[lane] ^ number(padded[i : i + 8]))
    value = len(data)
    for lane_value in lanes:
        value = mix(value ^ lane_value)
    return mix(value)
