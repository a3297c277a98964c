"""What cocotb runs inside a simulator: cocotbext-axi sends packets to a block, and checks what comes back.

The environment variable ``PACKETS`` names a JSON file with ``given`` and ``wanted`` packets, in hexadecimal,
and how many values each given one has, or null where the block isn't told.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiStreamBus, AxiStreamSink, AxiStreamSource


def at_random(seed: int, share: float) -> Iterator[bool]:
    draw = random.Random(seed)
    while True:
        yield draw.random() < share


def in_bursts(seed: int) -> Iterator[bool]:
    draw = random.Random(seed)
    while True:
        for pauses in (False, True):
            yield from itertools.repeat(pauses, draw.randint(1, 20))


async def transferred(dut: Any, pauses: tuple[Iterator[bool], Iterator[bool]] | None) -> None:
    packets = json.loads(Path(os.environ["PACKETS"]).read_text())
    Clock(dut.clk, 10, unit="ns").start()
    source = AxiStreamSource(AxiStreamBus.from_prefix(dut, "s_axis"), dut.clk, dut.rst)
    sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "m_axis"), dut.clk, dut.rst)
    dut.rst.value = 1
    for _ in range(3):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    if pauses is not None:
        source.set_pause_generator(pauses[0])
        sink.set_pause_generator(pauses[1])
    for packet, count in zip(packets["given"], packets["values"], strict=True):
        if count is not None:
            dut.values.value = count
        await source.send(bytes.fromhex(packet))
        if count is not None:
            await source.wait()
    for number, wanted in enumerate(packets["wanted"]):
        frame = await sink.recv()
        assert bytes(frame.tdata).hex() == wanted, f"packet {number}"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def without_stalls(dut: Any) -> None:
    await transferred(dut, None)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def with_random_stalls(dut: Any) -> None:
    await transferred(dut, (at_random(1, 0.3), at_random(2, 0.3)))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def with_bursts_of_stalls(dut: Any) -> None:
    await transferred(dut, (in_bursts(3), in_bursts(4)))
