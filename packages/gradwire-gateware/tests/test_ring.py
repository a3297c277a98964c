import pytest
import torch
from amaranth import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from gradwire.codecs import Codec, parse
from gradwire_gateware.ring import RingEngine
from gradwire_gateware.ring_routes import Ring, host_order
from support.axi import STALLS, Run, consumed, produced
from support.hardware_chunks import EXHAUSTIVE, raw
from support.lanes import side_by_side


def all_reduced(
    codec: Codec, values: torch.Tensor, stalls: str = "none", *, width: int = 256, rounds: int = 1
) -> list[Run]:
    """Return what each host gets of ``values[round][rank][chunk]``."""
    world, chunk_words = values.shape[1], values.shape[3] * 32 // width
    m = Module()
    ring = Ring.of(codec, world, chunk_words, width)
    engines = [RingEngine(ring) for _ in range(world)]
    runs = [Run() for _ in engines]
    m.submodules += engines
    for rank, engine in enumerate(engines):
        wiring.connect(m, engine.tx_axis, engines[(rank + 1) % world].rx_axis)
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    for rank, (engine, run) in enumerate(zip(engines, runs, strict=True)):
        taken, _ = host_order(rank, world)
        packets = [raw(values[at, rank, chunk]) for at in range(rounds) for chunk in taken]
        simulator.add_process(produced(engine.s_axis, packets, stalls, run, seed=rank))
        first = 2000 + world * chunk_words  # a host's first sum comes after those of the other ranks' chunks
        take = consumed(engine.m_axis, rounds * world, stalls, run, seed=world + rank, most_idle=first)
        simulator.add_testbench(take)
    simulator.run()
    return runs


def projected(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    codec.decode(codec.encode(x), out)
    return out


def summed(codec: Codec, values: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return a chunk's sum of ``values[rank][chunk]`` in the ring's order, encoded at every hop."""
    world = len(values)
    total = values[chunk, chunk]
    for hop in range(1, world):
        total = values[(chunk + hop) % world, chunk] + projected(codec, total)
    return projected(codec, total)


def laplace(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    uniform = torch.rand(*shape, generator=generator) - 0.5
    return -0.05 * uniform.sign() * torch.log1p(-1.999 * uniform.abs())


def check(codec: Codec, values: torch.Tensor, runs: list[Run]) -> None:
    rounds, world = values.shape[:2]
    for rank, run in enumerate(runs):
        _, given = host_order(rank, world)
        assert run.packets == [
            raw(summed(codec, values[at], chunk)) for at in range(rounds) for chunk in given
        ]


CELLS = [
    ("identity", 4, "none", 256),
    ("inceptionn:2^-10,bounded", 2, "random", 256),
    ("inceptionn:2^-10", 3, "none", 256),
    ("bfp:7x16", 3, "bursts", 256),
]
MORE = [
    (spec, world, list(STALLS)[(world + width // 512) % 3], width)
    for spec in ("identity", "inceptionn:2^-10,bounded", "bfp:7x16")
    for world in range(2, 9)
    for width in (256, 512)
]
"""Every codec with every world, width, and stall pattern, the patterns in turn."""


@pytest.mark.parametrize(("spec", "world", "stalls", "width"), CELLS + MORE if EXHAUSTIVE else CELLS)
def test_all_ranks_get_the_sums_of_the_ring(spec: str, world: int, stalls: str, width: int) -> None:
    codec = parse(spec)
    values = laplace(1, world, world, 8 * width // 32)
    check(codec, values, all_reduced(codec, values, stalls, width=width))


def test_one_all_reduce_follows_another() -> None:
    codec = parse("bfp:7x16")
    values = laplace(2, 2, 2, 64)
    check(codec, values, all_reduced(codec, values, "random", rounds=2))


def test_raw_floats_that_grow_do_not_deadlock() -> None:
    codec = parse("inceptionn:2^-10")
    values = laplace(1, 2, 2, 96) * 1e4
    check(codec, values, all_reduced(codec, values))


LATENCY = {"identity": 16, "inceptionn:2^-10": 50, "bfp:7x16": 44}
"""Cycles beyond those of the words, at most."""


@pytest.mark.parametrize(
    ("spec", "world"),
    [(spec, world) for spec in LATENCY for world in (2, 3, 5, 8)] if EXHAUSTIVE else [("bfp:7x16", 3)],
)
def test_a_ring_takes_the_cycles_of_its_steps(spec: str, world: int) -> None:
    words = 100 * -(-LATENCY[spec] // (2 * world - 1)) if EXHAUSTIVE else 64
    runs = all_reduced(parse(spec), laplace(1, world, world, 8 * words) * 0.1)
    cycles = max(run.left[-1] for run in runs)
    model = (2 * world - 1) * words
    assert model <= cycles <= model + LATENCY[spec]
    assert not EXHAUSTIVE or cycles <= 1.01 * model


@pytest.mark.parametrize(
    ("spec", "lanes"), [("identity", 4), ("bfp:7x16", 4)] if EXHAUSTIVE else [("identity", 2)]
)
def test_lanes_of_engines_reduce_as_many_gradients_at_once(spec: str, lanes: int) -> None:
    codec, world, words = parse(spec), 2, 64 if EXHAUSTIVE else 8
    values = laplace(lanes, world, world, 8 * words)
    ring, m = Ring.of(codec, world, words), Module()
    engines = [[RingEngine(ring) for _ in range(lanes)] for _ in range(world)]
    streams, runs = [], [Run() for _ in engines]
    for own, right in zip(engines, engines[1:] + engines[:1], strict=True):
        m.submodules += own
        for engine, neighbour in zip(own, right, strict=True):
            wiring.connect(m, engine.tx_axis, neighbour.rx_axis)
        streams.append(side_by_side(m, own, ring.width, words))
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    for rank, ((come, go), run) in enumerate(zip(streams, runs, strict=True)):
        taken, _ = host_order(rank, world)
        packets = [raw(values[lane, rank, chunk]) for chunk in taken for lane in range(lanes)]
        simulator.add_process(produced(come, packets, "none", run))
        simulator.add_testbench(consumed(go, lanes * world, "none", run))
    simulator.run()
    for rank, run in enumerate(runs):
        _, given = host_order(rank, world)
        assert run.packets == [
            raw(summed(codec, values[lane], chunk)) for chunk in given for lane in range(lanes)
        ]
    cycles = max(run.left[-1] for run in runs)
    # A lane's first chunk comes after those of the lanes before, and its last results wait for theirs.
    assert cycles <= (2 * world - 1) * words + words + LATENCY[spec] + 16
