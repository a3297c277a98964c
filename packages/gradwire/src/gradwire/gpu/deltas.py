"""Weight deltas on a GPU: one warp decodes each block, then the weights are updated (native/delta.cc).

The 32 lanes of a program are the 32 rANS coders of a block (native/kernels/rans.h). The escapes of all
sections are stored contiguously, in one plane per byte of a word. Therefore, one scan locates the escapes of
every program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.words import ceil_div, launch

FAULTS = (
    "a block is malformed",
    "unused bits of its last class are set",
    "the sizes of its sections and blocks do not add up",
)
_SECTION = 1 << 20
_TILE = tl.constexpr(1024)
_SLOTS = 1 << 14


@triton.jit
def _word_at(payload, at, there):
    """Load a little-endian 32-bit number from any address, byte by byte."""
    word = tl.zeros(at.shape, tl.int64)
    for byte in tl.static_range(4):
        word |= tl.load(payload + at + byte, mask=there, other=0).to(tl.int64) << (8 * byte)
    return word


@triton.jit
def locate_kernel(body, nbytes, sections, starts, sizes, status, BLOCKS: tl.constexpr):
    """Locate the blocks of all sections, in one program. Block b of section s has index b sections + s."""
    here = tl.arange(0, 1)
    begin = tl.zeros([1], tl.int64) + 4 * sections
    good = begin <= nbytes
    for section in range(sections):
        size = _word_at(body, here + 4 * section, good)
        good = good & (size >= 4 * BLOCKS) & (begin + size <= nbytes)
        at = begin + 4 * BLOCKS
        for block in tl.static_range(BLOCKS):
            block_nbytes = _word_at(body, begin + 4 * block, good)
            tl.store(starts + here + block * sections + section, at)
            tl.store(sizes + here + block * sections + section, block_nbytes)
            at += block_nbytes
        good = good & (at == begin + size)
        begin += size
    good = good & (begin == nbytes)
    tl.atomic_max(status, tl.max(tl.where(good, 0, 3).to(tl.int32), axis=0))


@triton.jit
def _read_table(table, nbytes, entries, slots):
    """Read a block's frequency table into ``entries`` and ``slots``; return its size, or 0 if invalid."""
    lane = tl.arange(0, 256)
    tl.store(entries + lane, tl.zeros([256], tl.int32))
    at = tl.zeros([1], tl.int32)
    symbol = tl.zeros([1], tl.int32)
    total = tl.zeros([1], tl.int32)
    was_absent = tl.zeros([1], tl.int32)
    good = tl.full([1], 1, tl.int32)
    while tl.min((total < 16384).to(tl.int32) & good, axis=0) > 0:
        good = ((symbol < 256) & (at < nbytes)).to(tl.int32)
        first = tl.load(table + at, mask=good == 1, other=1).to(tl.int32)
        is_absent = (first == 0).to(tl.int32)
        is_long = (first >= 192).to(tl.int32)
        two = is_absent | is_long
        good &= 1 - (two & (at + 1 >= nbytes).to(tl.int32))
        second = tl.load(table + at + 1, mask=(good & two) == 1, other=0).to(tl.int32)
        frequency = tl.where(is_long == 1, ((first - 192) << 8) | second, first)
        good &= 1 - (is_absent & was_absent)
        good &= 1 - (is_long & (frequency < 192).to(tl.int32))
        good &= ((frequency <= 16384 - total) & (frequency < 16384)).to(tl.int32)
        frequency = tl.where(good == 1, frequency, 0)
        tl.store(entries + symbol, total | (frequency << 16), mask=frequency > 0)
        slot = tl.max(total, axis=0) + lane
        for _ in range(0, tl.max(frequency, axis=0), 256):
            symbols = (symbol + tl.zeros([256], tl.int32)).to(tl.uint8)
            tl.store(slots + slot, symbols, mask=slot < total + frequency)
            slot += 256
        total += frequency
        at += 1 + two
        symbol += 1 + is_absent * second
        was_absent = is_absent
    return tl.max(at * good, axis=0)


@triton.jit
def _decode_coded(stream, nbytes, entries, slots, symbols, n):
    """Decode n symbols, and return 1 for a damaged stream, whose coders don't end in their initial states."""
    lane = tl.arange(0, 32)
    words_nbytes = nbytes - 128
    states = _word_at(stream, words_nbytes + 4 * lane, words_nbytes >= 0).to(tl.uint32)
    at = tl.maximum(words_nbytes, 0)
    good = (words_nbytes >= 0) & (tl.min(states.to(tl.int64), axis=0) >= 65536)
    done = tl.zeros_like(n)
    while (done < n) & good:
        active = done + lane < n
        slot = (states & 0x3FFF).to(tl.int32)
        symbol = tl.load(slots + slot).to(tl.int32)
        entry = tl.load(entries + symbol)
        tl.store(symbols + done + lane, symbol.to(tl.uint8), mask=active)
        start = (entry & 0xFFFF).to(tl.uint32)
        moved = (entry >> 16).to(tl.uint32) * (states >> 14) + slot.to(tl.uint32) - start
        states = tl.where(active, moved, states)
        wanting = active & (states < 65536)
        rank = tl.cumsum(wanting.to(tl.int32), axis=0)
        at -= 2 * tl.sum(wanting.to(tl.int32), axis=0)
        good = at >= 0
        word = stream + at + 2 * (rank - 1)
        low = tl.load(word, mask=wanting & good, other=0).to(tl.uint32)
        high = tl.load(word + 1, mask=wanting & good, other=0).to(tl.uint32)
        states = tl.where(wanting, (states << 16) | low | (high << 8), states)
        done += 32
    ended = good & (at == 0) & (tl.max((states != 65536).to(tl.int32), axis=0) == 0)
    return 1 - ended.to(tl.int32)


@triton.jit
def blocks_kernel(body, starts, sizes, counts, symbols, firsts, entries, slots, status):
    """Decode one block of a delta per program."""
    if tl.load(status) == 0:
        job = tl.program_id(0).to(tl.int64)
        block = body + tl.load(starts + job)
        nbytes = tl.load(sizes + job) - 1
        n = tl.load(counts + job)
        symbols += tl.load(firsts + job)
        mode = tl.load(block, mask=nbytes >= 0, other=3).to(tl.int32)
        block += 1
        fault = tl.zeros([], tl.int32) + 1
        lane = tl.arange(0, 256)
        if mode == 2:
            entries += job * 256
            slots += job * 16384
            table_nbytes = _read_table(block, nbytes, entries, slots)
            tl.debug_barrier()
            if table_nbytes > 0:
                fault = _decode_coded(block + table_nbytes, nbytes - table_nbytes, entries, slots, symbols, n)
        elif ((mode == 0) & (nbytes == n)) | ((mode == 1) & (nbytes == 1) & (n > 0)):
            fault = tl.zeros([], tl.int32)
            step = 1 - mode
            for first in range(0, n, 256):
                there = first + lane < n
                symbol = tl.load(block + (first + lane) * step, mask=there, other=0)
                tl.store(symbols + first + lane, symbol, mask=there)
        tl.atomic_max(status, fault)


@triton.jit
def _classes_at(classes, start, n):
    place = start + tl.arange(0, _TILE)
    quartet = tl.load(classes + place // 4, mask=place < n, other=0).to(tl.int32)
    return (quartet >> ((place % 4) * 2).to(tl.int32)) & 3


@triton.jit
def count_kernel(classes, n, totals, status):
    """Count the escapes, and check that bits after the last weight are 0."""
    start = tl.program_id(0).to(tl.int64) * _TILE
    if tl.load(status) == 0:
        kind = _classes_at(classes, start, (n + 3) // 4 * 4)
        unused = (kind != 0) & (start + tl.arange(0, _TILE) >= n)
        tl.atomic_max(status, tl.max(unused.to(tl.int32), axis=0) * 2)
        escapes = tl.sum((kind == 3).to(tl.int32), axis=0).to(tl.int64)
    else:
        escapes = tl.zeros([], tl.int64)
    tl.store(totals + tl.program_id(0), escapes)


@triton.jit
def _order(word, BITS):
    """Convert floats' bits to integers in the floats' total order, or such integers back to bits."""
    return word ^ tl.where((word >> (BITS - 1)) != 0, (1 << (BITS - 1)) - 1, 0).to(tl.uint32)


@triton.jit
def move_kernel(classes, planes, words, n, ends, totals, status, BITS: tl.constexpr, IS_FULL: tl.constexpr):
    """Apply a delta to weights. With IS_FULL, the old weights count as 0."""
    start = tl.program_id(0).to(tl.int64) * _TILE
    if tl.load(status) == 0:
        place = start + tl.arange(0, _TILE)
        there = place < n
        kind = _classes_at(classes, start, n)
        escapes = kind == 3
        before = tl.load(ends + tl.program_id(0)) - tl.load(totals + tl.program_id(0))
        number = before + tl.cumsum(escapes.to(tl.int32), axis=0) - 1
        u = kind.to(tl.uint32)
        for byte in tl.static_range(BITS // 8):
            plane = planes + byte * n.to(tl.int64)
            u += tl.load(plane + number, mask=escapes, other=0).to(tl.uint32) << (8 * byte)
        mask: tl.constexpr = (1 << BITS) - 1
        u &= mask
        moved = (u >> 1) ^ tl.where((u & 1) != 0, mask, 0).to(tl.uint32)
        if not IS_FULL:
            moved += _order(tl.load(words + place, mask=there, other=0).to(tl.uint32), BITS)
        tl.store(words + place, _order(moved & mask, BITS).to(words.dtype.element_ty), mask=there)


def queue_delta(body: Tensor, words: Tensor, *, full: bool) -> Tensor:
    """Queue the update of the weights ``words``, bfloat16 or float32, with a delta, and return the status.

    The status is an int32: 0, or the number of a fault in ``FAULTS``. A fault leaves the weights unchanged.
    """
    n, word_nbytes, device = words.numel(), words.element_size(), words.device
    sections = ceil_div(n, _SECTION)
    status = torch.zeros(1, dtype=torch.int32, device=device)
    starts, sizes = torch.zeros(2, (1 + word_nbytes) * sections, dtype=torch.int64, device=device)
    located = body, body.numel(), sections, starts, sizes, status
    launch(locate_kernel, 1, *located, warps=1, BLOCKS=1 + word_nbytes)
    classes = torch.empty(ceil_div(n, 4), dtype=torch.uint8, device=device)
    first = torch.arange(sections, dtype=torch.int64, device=device) * (_SECTION // 4)
    count = (classes.numel() - first).clamp(max=_SECTION // 4)
    _decode_blocks(body, starts[:sections], sizes[:sections], count, classes, first, status)
    tiles = ceil_div(n, _TILE.value)
    totals = torch.empty(tiles, dtype=torch.int64, device=device)
    launch(count_kernel, tiles, classes, n, totals, status)
    ends = totals.cumsum(0)
    planes = torch.empty(word_nbytes * n, dtype=torch.uint8, device=device)
    last = (torch.arange(1, sections + 1, device=device) * (_SECTION // _TILE.value)).clamp(max=tiles) - 1
    after = ends[last]
    before = after.roll(1)
    before[0] = 0
    offset = torch.arange(word_nbytes, dtype=torch.int64, device=device)[:, None] * n
    counts, firsts = (after - before).repeat(word_nbytes), (offset + before).flatten()
    _decode_blocks(body, starts[sections:], sizes[sections:], counts, planes, firsts, status)
    moved = classes, planes, words.view(torch.uint16 if word_nbytes == 2 else torch.uint32), n, ends, totals
    launch(move_kernel, tiles, *moved, status, BITS=8 * word_nbytes, IS_FULL=full)
    return status


def _decode_blocks(
    body: Tensor,
    starts: Tensor,
    sizes: Tensor,
    counts: Tensor,
    symbols: Tensor,
    firsts: Tensor,
    status: Tensor,
) -> None:
    blocks, device = starts.numel(), body.device
    entries = torch.empty(256 * blocks, dtype=torch.int32, device=device)
    slots = torch.empty(_SLOTS * blocks, dtype=torch.uint8, device=device)
    decoded = body, starts, sizes, counts, symbols, firsts, entries, slots, status
    launch(blocks_kernel, blocks, *decoded, warps=1)
