"""Read payloads of `ecsq`: numbers of steps behind an entropy coder. decoder.py reads the other codecs."""

from itertools import pairwise

from decoder import LARGEST, packed, product, words

SECTION, FOOT_FROM, FOOT_TO = 1 << 17, 0x0880, 0x7F00


def cut_into(data, count):  # parts whose sizes, four bytes each, stand before them
    starts = [4 * count]
    for size in words(data[: 4 * count]):
        starts.append(starts[-1] + size)
    return [data[a:b] for a, b in pairwise(starts)]


def symbols(data, n):  # a block of the entropy coder: raw, constant, or rANS
    if data[0] < 2:
        return [*data[1:]] if data[0] == 0 else [data[1]] * n
    slots, symbol, at = [], 0, 1
    while len(slots) < 1 << 14:  # the table
        f, more, at = data[at], data[at + 1], at + 1
        if f == 0 or f >= 192:
            f, symbol, at = (f - 192) * 256 + more if f else 0, symbol if f else symbol + more, at + 1
        slots += [(symbol, f, place) for place in range(f)]
        symbol += 1
    left, states, out = words(data[at:-128], "H"), words(data[-128:]), []
    for begin in range(0, n, 32):
        for j in range(min(32, n - begin)):
            symbol, f, place = slots[states[j] & 0x3FFF]
            states[j] = f * (states[j] >> 14) + place
            out.append(symbol)
        hungry = [j for j in range(32) if states[j] < 1 << 16]
        for j, low in zip(hungry, left[len(left) - len(hungry) :]):
            states[j] = states[j] << 16 | low
        del left[len(left) - len(hungry) :]
    return out


def ecsq(data, n, block, has_foot):  # all sections
    parts = cut_into(data, -(-n // SECTION))
    counts = [min(SECTION, n - i * SECTION) for i in range(len(parts))]
    return [bits for part, count in zip(parts, counts) for bits in section(part, count, block, has_foot)]


def section(data, n, block, has_foot):
    head, blocks = 12 + 4 * has_foot, -(-n // block)
    scales = words(data[head : head + 2 * blocks], "H")
    parts = cut_into(data[:head] + data[head + 2 * blocks :], 3 + has_foot)
    numbers = packed(bytes(symbols(parts[0], -(-n // 2))), 4, n, signed=True)
    escaped = [i for i in range(n) if numbers[i] == -8]
    on_foot = [i for i in range(n) if numbers[i] == 0 and FOOT_FROM <= scales[i // block] <= FOOT_TO]
    for i, low, high in zip(escaped, symbols(parts[1], len(escaped)), symbols(parts[2], len(escaped))):
        size = 8 + (low + 256 * high) // 2
        numbers[i] = -size if low & 1 else size
    if has_foot:
        for i, foot in zip(on_foot, symbols(parts[3], len(on_foot))):
            numbers[i] = foot_of(foot)
    return [product(q, scales[i // block] << 16, LARGEST) for i, q in enumerate(numbers)]


def foot_of(symbol):  # 0, or plus and minus 1/2, 3/8, 1/4, 3/16 ... 2^-16
    if symbol == 0:
        return 0
    place, is_negative = divmod(symbol - 1, 2)
    size = (3 / 8 if place & 1 else 1 / 2) * 2.0 ** -(place // 2)
    return -size if is_negative else size
