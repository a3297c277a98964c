"""Read payloads of `ecsq`: entropy-coded multiples of a step size. decoder.py reads the other codecs."""

from itertools import accumulate, pairwise

from decoder import LARGEST, packed, product, words

SLOTS, FOOT_FROM, FOOT_TO = 1 << 14, 0x0880, 0x7F00


def cut_into(data, count):  # parts whose sizes, four bytes each, stand before them, and what is left
    ends = accumulate(words(data[: 4 * count]), initial=4 * count)
    return [data[a:b] for a, b in pairwise([*ends, len(data)])]


def symbols(data, n):  # a block of the entropy coder: raw, constant, or rANS with a table of bytes or nibbles
    if data[0] < 2:
        return [*data[1:]] if data[0] == 0 else [data[1]] * n
    table, symbol, at = {}, 0, 1
    while sum(table.values()) < SLOTS:
        f, more, at = data[at], data[at + 1], at + 1
        if f == 0 or f >= 192:
            f, symbol, at = (f - 192) * 256 + more if f else 0, symbol if f else symbol + more, at + 1
        table |= {symbol: f} if f else {}
        symbol += 1
    if data[0] == 3:
        table = of_pairs(table)
    slots = [(symbol, f, place) for symbol, f in table.items() for place in range(f)]
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


def of_pairs(of_nibble):  # a slot for each pair, and the others by the cumulative products
    products = {low + 16 * high: of_nibble[low] * of_nibble[high] for high in of_nibble for low in of_nibble}
    ends = [0, *accumulate(products.values())]
    shared = [end * (SLOTS - len(products)) // SLOTS**2 for end in ends]
    return {pair: 1 + end - start for pair, (start, end) in zip(products, pairwise(shared))}


def ecsq(data, n, block, has_foot):  # all sections
    equal = n if n < 1 << 15 else -(-n // (2 * -(-n // (1 << 18))))
    length = max(1, -(-equal // block)) * block
    counts = [min(length, n - at) for at in range(0, n, length)]
    parts = cut_into(data, len(counts))[:-1]
    return [bits for part, count in zip(parts, counts) for bits in section(part, count, block, has_foot)]


def section(data, n, block, has_foot):
    head, blocks = 12 + 4 * has_foot, -(-n // block)
    upper, *parts = cut_into(data[:head] + data[head + blocks :], 3 + has_foot)
    scales = [low + 256 * byte for low, byte in zip(data[head:], symbols(upper, blocks))]
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
