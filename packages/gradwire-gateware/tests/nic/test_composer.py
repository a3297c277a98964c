import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from gradwire_gateware.nic.composer import Composer
from support.axi import Run, consumed, produced
from support.nic_frames import tcp_frame


def asked(kind: int, headers: int, body: bytes, extra: bytes, tail: bytes) -> dict[str, int]:
    """Return the order for a composed frame, for one that passes, or for one that is dropped."""
    return {
        "is_composed": int(kind == 0),
        "is_dropped": int(kind == 2),
        "has_payload": int(kind == 0 or bool(body)),
        "headers": headers,
        "length": 0xABC,
        "checksum": 0x1234,
        "extra": int.from_bytes(extra, "little"),
        "extra_count": len(extra),
        "size": len(body),
        "tail": int.from_bytes(tail, "little"),
        "tail_count": len(tail),
    }


@pytest.mark.parametrize("width", [256, 512])
def test_frames_are_composed_passed_and_dropped(width: int) -> None:
    draw = random.Random(width)
    frames, bodies, orders, expected = [], [], [], []
    for number in range(60):
        kind = number % 3 if number < 9 else draw.randrange(3)
        frame = tcp_frame(draw.randbytes(draw.randint(0, 200)), options=bytes(4 * draw.randint(0, 10)))
        headers = 34 + 4 * (frame[46] >> 4)
        body = draw.randbytes(draw.randint(1, 150)) if kind == 0 or draw.random() < 0.5 else b""
        extra, tail = draw.randbytes(draw.randint(0, 14)), draw.randbytes(draw.randint(0, 3))
        frames.append(frame)
        bodies += [body] if body else []
        orders.append(asked(kind, headers, body, extra, tail))
        ip = (
            b"\x0a\xbc"
            + frame[18:23]
            + bytes([253])
            + b"\x34\x12"
            + frame[26:50]
            + b"\0\0"
            + frame[52:headers]
        )
        expected += [[frame[:16] + ip + extra + body + tail], [frame], []][kind]
    block, run = Composer(width, 253), Run()

    async def tell(ctx: Any) -> None:
        for order in orders:
            for _ in range(draw.choice([0, 0, 9])):
                await ctx.tick()
            ctx.set(block.order, order)
            ctx.set(block.told, 1)
            while not (await ctx.tick().sample(block.takes))[2]:
                pass
            ctx.set(block.told, 0)

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(tell)
    simulator.add_process(produced(block.frames, frames, "random", Run()))
    simulator.add_process(produced(block.payloads, bodies, "bursts", Run()))
    simulator.add_testbench(consumed(block.m_axis, len(expected), "random", run))
    simulator.run()
    assert run.packets == expected
