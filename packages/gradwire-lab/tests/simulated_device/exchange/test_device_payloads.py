"""Buckets on a device: the native engine gives the frames, bits, costs, and errors of the Python walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch

from gradwire.codecs import parse
from gradwire.devices import on_host
from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange, Norms
from gradwire.exchange.engine import EngineRun
from gradwire.exchange.request import BucketRequest, Half
from gradwire.exchange.views import ParameterViews
from gradwire.links import Link
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES, frame_memory, seal_frame
from gradwire_lab.simulated_device.simulated import Simulated
from support import gpu_cases
from support.device_waits import check_each_wait
from support.in_python import InPython
from support.meshes import sockets
from support.ranks import run_ranks

TIMEOUT_S = 30.0


class Found(NamedTuple):
    """The result of one rank's exchanges."""

    buckets: list[bytes]
    residual: bytes
    sums: bytes
    sizes: list[tuple[float, float, int, int, float]]


class Engines:
    """The ranks whose runs the native engine executes."""

    def __init__(self) -> None:
        self.ranks: list[int] = []

    def __enter__(self) -> Engines:
        self._run = run = EngineRun.run
        ranks = self.ranks

        def counted(self: EngineRun) -> Any:
            ranks.append(self._resources.link.rank)
            return run(self)

        EngineRun.run = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        EngineRun.run = self._run  # type: ignore[method-assign]


def exchanged(
    link: Link, devices: Sequence[Simulated], plan: Plan, n: int, half: Half, measures: bool
) -> Found:
    """Exchange two buckets on this rank's device."""
    device, exchange = devices[link.rank], Exchange(link, plan)
    residual = device.own(gpu_cases.gradient(n, 7 + link.rank).clamp(-1, 1)) if plan.keeps_residual else None
    norms = Norms([0, n // 3, n]) if measures else None
    buckets, sizes = [], []
    for step in range(2):
        bucket = device.own(gpu_cases.gradient(n, link.rank + step))
        cost = exchange.run(bucket, BucketRequest(half, residual=residual, norms=norms))
        buckets.append(on_host(bucket).numpy().tobytes())
        sizes.append((cost.raw_nbytes, cost.wire_nbytes, cost.frames, cost.nonfinite, cost.device_nbytes))
        assert min(cost.encode_s, cost.decode_s, cost.wait_s, cost.handling_s) >= 0.0
    return Found(
        buckets,
        b"" if residual is None else on_host(residual).numpy().tobytes(),
        b"" if norms is None else norms.sums.numpy().tobytes(),
        sizes,
    )


def check_same(
    world: int, algorithm: str, spec: str, n: int, half: Half = Half.ALL_REDUCE, measures: bool = False
) -> None:
    """Compare all ranks in Python, all on the engine, and every other one on the engine, with its frames."""
    plan = Plan(parse(spec.partition("+")[0]), algorithm, SEGMENT_UNIT_NBYTES, residual=spec.endswith("+"))

    def found(links: Sequence[Link]) -> list[Found]:
        devices = [Simulated() for _ in range(world)]
        return run_ranks(world, exchanged, devices, plan, n, half, measures, links=links)

    def frames(links: Sequence[Link]) -> list[list[bytes]]:
        return [each.frames for each in links if isinstance(each, InPython) and each.rank % 2]

    walked = [InPython(each) for each in sockets(world, TIMEOUT_S)]
    mixed = [InPython(each) if each.rank % 2 else each for each in sockets(world, TIMEOUT_S)]
    with Engines() as engines:
        expected = found(walked)
        assert not engines.ranks
        assert found(sockets(world, TIMEOUT_S)) == expected
        assert sorted(engines.ranks) == sorted(2 * [*range(world)])
        assert found(mixed) == expected
    assert frames(mixed) == frames(walked)
    assert all(frames(walked))


@pytest.mark.parametrize(
    ("world", "algorithm", "spec", "n"),
    [
        (2, "ring", "bf16", 2 * 4096 + 2000),  # several segments
        (4, "ring", "fp8", 150),
        (3, "ring", "quantize:4+", 200),
        (2, "tree", "errbound:2^-10+", 300),  # a size of its own for each payload
        (3, "star", "fp8", 150),
        (4, "butterfly", "bf16", 150),
        (3, "pairwise", "bf16", 150),
        (3, "ring", "identity", 2),  # a rank's chunk is empty
        (2, "ring", "identity+", 100),
        (3, "ring", "topk:0.25+", 200),
    ],
)
def test_results_frames_and_costs_are_those_of_the_walk(
    interpreted: Callable[..., Any], world: int, algorithm: str, spec: str, n: int
) -> None:
    interpreted(check_same, world, algorithm, spec, n)


@pytest.mark.parametrize("half", [Half.REDUCE, Half.BROADCAST])
def test_so_are_those_of_one_half(interpreted: Callable[..., Any], half: Half) -> None:
    interpreted(check_same, 3, "ring", "fp8", 150, half)


def test_so_are_measured_errors(interpreted: Callable[..., Any]) -> None:
    interpreted(check_same, 2, "ring", "quantize:8", 150, Half.ALL_REDUCE, True)


VIEWS = ParameterViews((100, 1, 70, 29), tuple(map(parse, ("fp8", "bf16", "fp8", "identity"))))


def with_views(link: Link, devices: Sequence[Simulated] | None, plan: Plan, poisons: bool) -> Found:
    """Exchange two buckets with three codecs, on this rank's device or on the host."""

    def own(values: torch.Tensor) -> torch.Tensor:
        return values if devices is None else devices[link.rank].own(values)

    exchange, n = Exchange(link, plan), sum(VIEWS.counts)
    residual = own(gpu_cases.gradient(n, 7 + link.rank).clamp(-1, 1)) if plan.keeps_residual else None
    buckets, sizes = [], []
    for step in range(2):
        values = gpu_cases.gradient(n, link.rank + step).clamp(-1, 1)
        if poisons:
            values[100] = float("nan")  # of bf16
        bucket = own(values)
        cost = exchange.run(bucket, BucketRequest(views=VIEWS, residual=residual))
        buckets.append(on_host(bucket).numpy().tobytes())
        sizes.append((cost.raw_nbytes, cost.wire_nbytes, cost.frames, cost.nonfinite, 0.0))
    return Found(buckets, b"" if residual is None else on_host(residual).numpy().tobytes(), b"", sizes)


def check_several_codecs(keeps: bool, poisons: bool) -> None:
    """Compare walk and engine with devices, and the host."""
    world, plan = 3, Plan(parse("fp8"), "ring", SEGMENT_UNIT_NBYTES, residual=keeps)

    def found(links: Sequence[Link], devices: Sequence[Simulated] | None) -> list[Found]:
        return run_ranks(world, with_views, devices, plan, poisons, links=links)

    on_the_host = found(sockets(world, TIMEOUT_S), None)
    walked = [InPython(each) for each in sockets(world, TIMEOUT_S)]
    assert found(walked, [Simulated() for _ in range(world)]) == on_the_host
    with Engines() as engines:
        assert found(sockets(world, TIMEOUT_S), [Simulated() for _ in range(world)]) == on_the_host
        assert sorted(engines.ranks) == sorted(2 * [*range(world)])
    if keeps and poisons:
        old = [gpu_cases.gradient(sum(VIEWS.counts), 7 + rank).clamp(-1, 1) for rank in range(world)]
        assert [each.residual for each in on_the_host] == [each.numpy().tobytes() for each in old]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("poisons", [False, True])
def test_several_codecs_give_the_bits_of_the_host(
    interpreted: Callable[..., Any], keeps: bool, poisons: bool
) -> None:
    interpreted(check_several_codecs, keeps, poisons)


def check_few_waits() -> None:
    """A rank of a ring of four encodes four chunks; it decodes six, which all need no wait of their own."""
    waits = []
    for wrap in (InPython, lambda link: link):
        devices = [Simulated() for _ in range(4)]
        links = [wrap(each) for each in sockets(4, TIMEOUT_S)]
        run_ranks(4, exchanged, devices, Plan(parse("bf16")), 80, Half.ALL_REDUCE, False, links=links)
        waits.append({device.waits["wait"] - 2 for device in devices})  # without those of on_host
    assert waits == [{2 * (4 + 6 + 1)}, {2 * (4 + 1 + 1)}]


def test_decodings_have_no_waits_of_their_own(interpreted: Callable[..., Any]) -> None:
    interpreted(check_few_waits)


def check_waits() -> None:
    """Without any one of its waits, a rank fails, or some rank has other values or counts."""

    def results(first: Simulated) -> list[Found]:
        devices, plan = [first, Simulated()], Plan(parse("bf16"))
        how = devices, plan, 40, Half.ALL_REDUCE, False
        return run_ranks(2, exchanged, *how, links=sockets(2, 2.0))

    check_each_wait(results)


def test_each_of_its_waits_is_needed(interpreted: Callable[..., Any]) -> None:
    interpreted(check_waits)


def failure(engine: bool, device: Simulated, plan: Plan, n: int, half: Half) -> tuple[str, str]:
    """Return rank 0's error, and the reason that its exchange gives later, while rank 1 is correct."""

    def act(link: Link) -> tuple[str, str]:
        exchange = Exchange(link, plan)
        bucket = gpu_cases.gradient(n, link.rank)
        try:
            exchange.run(device.own(bucket) if link.rank == 0 else bucket, BucketRequest(half))
        except Exception as error:
            return f"{type(error).__name__}: {error}", str(exchange.failure)
        finally:
            link.close()
        return "", str(exchange.failure)

    links = sockets(2, 5.0)
    first = links if engine else [InPython(links[0]), links[1]]
    with Engines() as engines:
        found, _ = run_ranks(2, act, links=first, errors="return")
    assert (0 in engines.ranks) == engine
    return found  # type: ignore[no-any-return]


def check_errors() -> None:
    """Memory runs out at each allocation in turn, so that each kind of action fails."""
    plan, n = Plan(parse("bf16"), "ring", SEGMENT_UNIT_NBYTES), 2 * 4096 + 100
    failures = set[str]()
    for number in range(60):
        found = [
            failure(engine, Simulated(refused=("pinned", number)), plan, n, Half.ALL_REDUCE)
            for engine in (False, True)
        ]
        assert found[0] == found[1], f"allocation {number}"
        failures.add(found[0][1])
        if not found[0][0]:
            break
    else:
        pytest.fail("more allocations than expected")
    assert len(failures) > 4
    assert any("sending to" in each for each in failures)
    assert any("receiving from" in each for each in failures)


def test_an_error_on_the_device_names_the_same_action(interpreted: Callable[..., Any]) -> None:
    interpreted(check_errors)


def malformed(engine: bool, algorithm: str, half: Half, world: int) -> tuple[str, list[float]]:
    """Return rank 0's error and bucket after a payload with infinite scales from rank 1.

    All other ranks send nothing.
    """
    codec, n, device = parse("quantize:8"), 64, Simulated()
    plan = Plan(codec, algorithm, SEGMENT_UNIT_NBYTES)
    bucket = device.own(torch.ones(n))
    count = n if algorithm == "star" else n // 2

    def act(link: Link) -> str:
        if link.rank == 0:
            used = link if engine else InPython(link)
            with pytest.raises(ExchangeError) as caught:
                Exchange(used, plan).run(bucket, BucketRequest(half, timeout_s=5.0))
            return str(caught.value)
        if link.rank > 1:
            return ""
        frame = frame_memory(HEADER_NBYTES + codec.max_nbytes(count))
        frame[HEADER_NBYTES:] = 0xFF
        sealed = seal_frame(
            frame,
            codec.max_nbytes(count),
            codec_id=codec.wire_id,
            fingerprint=codec.fingerprint,
            count=count,
            sequence=0,
            flags=1 if half is Half.ALL_REDUCE else 0,
        )
        link.isend(0, sealed).wait(5.0)
        return ""

    with Engines() as engines:
        told = run_ranks(world, act, links=sockets(world, 5.0))[0]
    assert engines.ranks == [0] * engine
    return told, on_host(bucket).tolist()


def check_malformed(algorithm: str, half: Half, world: int) -> None:
    expected, values = malformed(False, algorithm, half, world)
    assert "a scale is negative or infinite" in expected, expected
    found = malformed(True, algorithm, half, world)
    assert found == (expected, values), found
    assert values == [1.0] * 64


@pytest.mark.parametrize(
    ("algorithm", "half", "world"),
    [
        ("star", Half.REDUCE, 2),
        ("ring", Half.ALL_REDUCE, 2),
        ("star", Half.REDUCE, 3),  # the engine first waits for the third rank
    ],
)
def test_a_malformed_payload_has_the_same_error(
    interpreted: Callable[..., Any], algorithm: str, half: Half, world: int
) -> None:
    interpreted(check_malformed, algorithm, half, world)
