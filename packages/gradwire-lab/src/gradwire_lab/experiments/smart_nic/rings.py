"""The cycles of simulated ring engines, and the model's prediction."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradwire.codecs import parse
from gradwire.errors import MissingPackageError
from gradwire.version import how_to_install
from gradwire_gateware import LANE_BITS
from gradwire_gateware.ring_routes import Ring
from gradwire_lab.closed_forms.smart_nic import RingCircuit
from gradwire_lab.experiments.experiment import Cell, Reporter
from gradwire_lab.experiments.smart_nic.verdict import compression

WIDTH = 256
PROBE_NODES = 2
"""The number of nodes of the smallest ring, which gives the latency of each codec's circuit."""


def simulate(cells: Sequence[Cell], reporter: Reporter) -> None:
    """Simulate and report the cells. Raises ``MissingPackageError`` without the package amaranth."""
    latency = dict[tuple[str, int], float]()
    for cell in cells:
        spec, nodes, words = cell["codec"], cell["nodes"], cell["chunk_words"]
        reporter.say(f"simulating {nodes} engines with {spec}")
        if (spec, words) not in latency:
            probe, circuit = _ring(spec, PROBE_NODES, words)
            latency[spec, words] = cycles_of(probe, PROBE_NODES, 1) - circuit.cycles(PROBE_NODES, words)
        ring, circuit = _ring(spec, nodes, words)
        circuit = replace(circuit, latency=latency[spec, words])
        nic, nbytes = circuit.nic, WIDTH // 8 * words * nodes
        reporter(
            {
                **cell,
                "ring_cycles": nic.ring_s(nbytes, nodes),
                "add_cycles": nic.add_s(nbytes, nodes),
                "memory_cycles": nic.memory_s(nbytes),
                "latency_cycles": circuit.latency,
                "model_cycles": circuit.cycles(nodes, words, cell["rounds"]),
                "cycles": cycles_of(ring, nodes, cell["rounds"]),
            }
        )


def _ring(spec: str, nodes: int, words: int) -> tuple[Ring, RingCircuit]:
    """Return a ring, and the ring's model without latency."""
    codec = parse(spec)
    ring = Ring.of(codec, nodes, words, WIDTH)
    decoded = len(ring.routes.decoded_is_added)
    return ring, RingCircuit(WIDTH // LANE_BITS, compression(spec), decoded)


def cycles_of(ring: Ring, nodes: int, rounds: int) -> int:
    """Return the number of cycles until the last word of the last sum leaves the last engine."""
    try:
        from amaranth import Module
        from amaranth.lib import wiring
        from amaranth.sim import Simulator

        from gradwire_gateware.ring import RingEngine
    except ImportError as error:
        raise MissingPackageError(
            f"the rings of smart-nic need the package amaranth, which cannot be imported ({error}); "
            f"{how_to_install('gateware')}, or omit the rings with --parts",
            name="amaranth",
        ) from error
    m = Module()
    engines = [RingEngine(ring) for _ in range(nodes)]
    m.submodules += engines
    for engine, right in zip(engines, [*engines[1:], engines[0]], strict=True):
        wiring.connect(m, engine.tx_axis, right.rx_axis)
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    ends: list[int] = []
    for seed, engine in enumerate(engines):
        simulator.add_process(_fed(engine.s_axis, ring, rounds * nodes, random.Random(seed)))
        simulator.add_testbench(_drained(engine.m_axis, rounds * nodes, ends))
    simulator.run()
    return max(ends)


def _fed(stream: Any, ring: Ring, chunks: int, draw: random.Random) -> Callable[[Any], Any]:
    """Return the process that feeds an engine a word in every cycle."""

    async def feed(ctx: Any) -> None:
        ctx.set(stream.tkeep, -1)
        ctx.set(stream.tvalid, 1)
        for number in range(1, chunks * ring.chunk_words + 1):
            ctx.set(stream.tdata, _word(draw, ring.width // LANE_BITS))
            ctx.set(stream.tlast, number % ring.chunk_words == 0)
            await ctx.tick().until(stream.tready)
        ctx.set(stream.tvalid, 0)

    return feed


def _drained(stream: Any, chunks: int, ends: list[int]) -> Callable[[Any], Any]:
    """Return the process that reads the sums, and appends the cycle of the last word to ``ends``."""

    async def drain(ctx: Any) -> None:
        ctx.set(stream.tready, 1)
        left, now = chunks, 0
        while left:
            _, _, ended = await ctx.tick().sample(stream.tvalid & stream.tlast)
            now, left = now + 1, left - ended
        ends.append(now)

    return drain


def _word(draw: random.Random, lanes: int) -> int:
    """Return a word of random floats between 1 and 2."""
    return sum((0x3F800000 | draw.getrandbits(23)) << LANE_BITS * lane for lane in range(lanes))
