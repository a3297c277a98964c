"""The native engine gives the frames, bits, costs and errors of the Python walk, which is the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.codecs import Codec, parse
from gradwire.codecs.blocks import Fp8
from gradwire.codecs.topk import TopK
from gradwire.costs import Scales
from gradwire.errors import ExchangeError, PayloadError, SpecError
from gradwire.exchange import Exchange
from gradwire.exchange.feedback import Residual
from gradwire.exchange.norms import Norms
from gradwire.exchange.request import BucketRequest, Half
from gradwire.exchange.views import ParameterViews
from gradwire.links import Link
from gradwire.plan import Plan
from support.every_codec import SPECS
from support.in_python import InPython
from support.meshes import sockets

RunRanks = Callable[..., list[Any]]
ALGORITHMS = ["ring", "tree", "butterfly", "star", "pairwise"]


class Found(NamedTuple):
    """The result of one rank's exchanges."""

    buckets: list[bytes]
    residual: bytes
    norms: bytes
    sizes: list[tuple[float, float, int, int, Scales]]


@dataclass(frozen=True)
class Case:
    """The exchanges of one rank: two buckets, with a residual or norms if wanted."""

    plan: Plan
    count: int
    half: Half = Half.ALL_REDUCE
    average: bool = True
    feedback: str = ""
    views: ParameterViews | None = None
    values: Callable[[int], torch.Tensor] | None = field(default=None, compare=False)

    def run(self, link: Link) -> Found:
        """Run the exchanges on one rank."""
        exchange = Exchange(link, self.plan)
        generator = torch.Generator().manual_seed(link.rank)
        residual = (
            0.001 * torch.randn(self.count, generator=generator) if "residual" in self.feedback else None
        )
        counts = [self.count] if self.views is None else [*self.views.counts]
        kept = None if residual is None else Residual(torch.split(residual, counts), torch.empty(self.count))
        borders = (
            [0, self.count // 3, self.count]
            if self.views is None
            else [sum(self.views.counts[:i]) for i in range(len(self.views.counts) + 1)]
        )
        norms = Norms(borders) if "norms" in self.feedback else None
        buckets, sizes = [], []
        for _ in range(2):
            bucket = torch.randn(self.count, generator=generator)
            if self.values is not None:
                bucket = self.values(link.rank)
            request = BucketRequest(self.half, self.average, None, self.views, kept, norms)
            cost = exchange.run(bucket, request)
            buckets.append(bucket.numpy().tobytes())
            sizes.append((cost.raw_nbytes, cost.wire_nbytes, cost.frames, cost.nonfinite, cost.scales))
            assert min(cost.encode_s, cost.decode_s, cost.wait_s, cost.handling_s) >= 0.0
        return Found(
            buckets,
            b"" if residual is None else residual.numpy().tobytes(),
            b"" if norms is None else norms.sums.numpy().tobytes(),
            sizes,
        )


def check(run_ranks: RunRanks, world: int, case: Case, native_runs: list[int]) -> None:
    """Compare all ranks in Python, all on the engine, and every other one on the engine."""
    python = run_ranks(world, case.run, links=[InPython(each) for each in sockets(world, 30.0)])
    assert not native_runs
    assert run_ranks(world, case.run, links=sockets(world, 30.0)) == python
    assert set(native_runs) == set(range(world) if world > 1 else ())
    mixed = [each if each.rank % 2 else InPython(each) for each in sockets(world, 30.0)]
    assert run_ranks(world, case.run, links=mixed) == python
    native_runs.clear()


@pytest.mark.parametrize("world", range(1, 10))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_and_world(
    run_ranks: RunRanks, world: int, algorithm: str, native_runs: list[int]
) -> None:
    plan = Plan(parse("fp8"), algorithm, segment_nbytes=1 << 14)
    check(run_ranks, world, Case(plan, 40_001), native_runs)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("feedback", ["", "norms", "residual", "residual and norms"])
def test_every_codec(run_ranks: RunRanks, spec: str, feedback: str, native_runs: list[int]) -> None:
    plan = Plan(parse(spec), "ring", segment_nbytes=1 << 14, residual="residual" in feedback)
    check(run_ranks, 3, Case(plan, 20_003, feedback=feedback), native_runs)


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 30_000),
    world=st.integers(2, 4),
    segment=st.sampled_from([1 << 14, 1 << 15, 1 << 20]),
    algorithm=st.sampled_from(ALGORITHMS),
    average=st.booleans(),
    half=st.sampled_from([Half.ALL_REDUCE, Half.REDUCE, Half.BROADCAST]),
)
def test_any_length_segment_and_half(
    count: int, world: int, segment: int, algorithm: str, average: bool, half: Half
) -> None:
    from support.ranks import run_ranks

    if half is not Half.ALL_REDUCE:
        algorithm = "star" if algorithm == "star" else "ring"
    case = Case(Plan(parse("quantize:4"), algorithm, segment_nbytes=segment), count, half, average)
    python = run_ranks(world, case.run, links=[InPython(each) for each in sockets(world, 30.0)])
    assert run_ranks(world, case.run, links=sockets(world, 30.0)) == python


FEEDBACK = ["", "norms", "residual", "residual and norms"]


def with_several_codecs(spec: str, algorithm: str, world: int, feedback: str, **how: Any) -> Case:
    """Return a case whose bucket has three codecs, with padding if it keeps no residual."""
    counts = (1000, 1, 20_480, 63, 5000, 3)
    plan = Plan(parse(spec), algorithm, segment_nbytes=1 << 14, residual="residual" in feedback, **how)
    codecs: list[Codec] = [plan.encoding] * 6
    codecs[1] = codecs[4] = parse("bf16")
    codecs[3] = parse("identity")
    views = ParameterViews.of(plan, world, counts, codecs)
    return Case(plan, sum(counts), feedback=feedback, views=views)


@pytest.mark.parametrize("spec", ["fp8", "ecsq:0.25,block=64", "identity", "lossless", "topk:0.25"])
@pytest.mark.parametrize("feedback", FEEDBACK)
def test_parameters_that_are_padded_or_have_their_own_codecs(
    run_ranks: RunRanks, spec: str, feedback: str, native_runs: list[int]
) -> None:
    check(run_ranks, 3, with_several_codecs(spec, "ring", 3, feedback), native_runs)


@pytest.mark.parametrize("world", range(1, 7))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_codecs_with_every_algorithm_and_world(
    run_ranks: RunRanks, world: int, algorithm: str, native_runs: list[int]
) -> None:
    feedback = FEEDBACK[(world + len(algorithm)) % 4]
    for spec in ("quantize:8", "topk:0.25"):
        check(run_ranks, world, with_several_codecs(spec, algorithm, world, feedback), native_runs)


def test_scaled_values_beside_others(run_ranks: RunRanks, native_runs: list[int]) -> None:
    case = with_several_codecs("errbound:2^-10", "ring", 3, "", scale="auto")
    check(run_ranks, 3, case, native_runs)
    found = run_ranks(3, case.run, links=sockets(3, 30.0))
    assert all(scales for each in found for *_, scales in each.sizes)


@pytest.mark.parametrize("broken", ["_encode", "_decode_add", "_decode_finished"])
def test_an_error_of_a_codec_in_python(
    run_ranks: RunRanks, native_runs: list[int], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(codec: Codec, *_args: torch.Tensor) -> None:
        raise PayloadError(f"{codec} fails in {broken}")

    def errors(wrap: Callable[[Link], Link]) -> list[str]:
        def rank(link: Link) -> str:
            with pytest.raises(ExchangeError) as caught:
                case.run(link)
            return str(caught.value)

        return run_ranks(2, rank, links=[wrap(each) for each in sockets(2, 5.0)])

    case = with_several_codecs("topk:0.25", "ring", 2, "")
    monkeypatch.setattr(TopK, broken, fails)
    python = errors(InPython)
    assert not native_runs
    native = errors(lambda link: link)
    assert set(native_runs) == {0, 1}
    assert any(f"fails in {broken}" in each for each in native)
    assert {each for each in native if "fails in" in each} == {each for each in python if "fails in" in each}


def test_an_interrupt_in_a_python_codec_ends_the_exchange(
    run_ranks: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def rank(link: Link) -> None:
        with pytest.raises(KeyboardInterrupt):
            case.run(link)
        with pytest.raises(ExchangeError):
            Exchange(link, case.plan).all_reduce(torch.ones(10))

    case = with_several_codecs("topk:0.25", "ring", 2, "")
    monkeypatch.setattr(TopK, "_encode", interrupted)
    run_ranks(2, rank, links=sockets(2, 5.0))


def test_a_payload_past_its_memory_is_an_error(run_ranks: RunRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(_codec: Codec, _x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.zeros(out.numel() + 1, dtype=torch.uint8)

    def rank(link: Link) -> None:
        with pytest.raises(ValueError, match="expected a payload of at most max_nbytes"):
            case.run(link)

    case = with_several_codecs("topk:0.25", "ring", 2, "")
    monkeypatch.setattr(TopK, "encode", encode)
    run_ranks(2, rank, links=sockets(2, 5.0))


@pytest.mark.parametrize("spec", ["identity", "fp8", "errbound:2^-10", "ecsq:0.25"])
@pytest.mark.parametrize("feedback", ["", "norms", "residual"])
def test_nonfinite_values(run_ranks: RunRanks, spec: str, feedback: str, native_runs: list[int]) -> None:
    def values(rank: int) -> torch.Tensor:
        bucket = torch.full((20_000,), 0.5)
        bucket[17 * rank] = float("nan") if rank else float("inf")
        return bucket

    plan = Plan(parse(spec), "ring", segment_nbytes=1 << 14, residual="residual" in feedback)
    check(run_ranks, 3, Case(plan, 20_000, feedback=feedback, values=values), native_runs)


def test_frames_are_the_same_bytes(run_ranks: RunRanks) -> None:
    for spec in ("identity", "fp8", "ecsq:0.25"):
        case = Case(Plan(parse(spec), "ring", segment_nbytes=1 << 14), 40_000)
        noted = []
        for engine in (False, True):
            one, other = sockets(2, 30.0)
            witness = InPython(other)
            run_ranks(2, case.run, links=[one if engine else InPython(one), witness])
            noted.append(witness.frames)
        assert noted[0] == noted[1]
        assert len(noted[0]) == 2 * 2 * 2 * 5, "two buckets, halves and directions, five segments each"


CODEC = parse("fp8")
PLAN = Plan(CODEC, "ring", segment_nbytes=1 << 14)
COUNT = 16_384


def test_a_link_with_frames_in_flight_is_left_to_python(native_runs: list[int], run_ranks: RunRanks) -> None:
    links = sockets(2, 30.0)
    before = [links[0].irecv(1, torch.empty(64, dtype=torch.uint8)), None]
    links[1].isend(0, torch.zeros(8, dtype=torch.uint8)).wait()

    def rank(link: Link) -> float:
        bucket = torch.full((100,), float(link.rank))
        receiving = before[link.rank]
        if receiving is not None:
            assert receiving.wait().numel() == 8
        Exchange(link, Plan(parse("identity"), "ring")).all_reduce(bucket)
        return float(bucket[0])

    assert run_ranks(2, rank, links=links) == [0.5, 0.5]
    assert sorted(native_runs) == [0, 1], "once nothing is in flight"


@pytest.mark.parametrize("name", ["native", "python"])
def test_the_variable_selects_the_engine(
    monkeypatch: pytest.MonkeyPatch, run_ranks: RunRanks, name: str, native_runs: list[int]
) -> None:
    monkeypatch.setenv("GRADWIRE_ENGINE", name)
    run_ranks(2, Case(Plan(CODEC, "ring"), 10).run, links=sockets(2, 30.0))
    assert bool(native_runs) == (name == "native")


def test_an_unknown_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_ENGINE", "rust")
    links = sockets(2, 5.0)
    with pytest.raises(SpecError, match="GRADWIRE_ENGINE: expected native or python, got 'rust'"):
        Exchange(links[0], PLAN).all_reduce(torch.ones(COUNT))
    for link in links:
        link.close()


@dataclass(frozen=True)
class Zeros(Fp8):
    """A codec of another package, which encodes in Python."""

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        return super()._encode(torch.zeros_like(x), out)


def test_the_codec_of_another_package_encodes_in_python(run_ranks: RunRanks, native_runs: list[int]) -> None:
    def rank(link: Link) -> float:
        bucket = torch.ones(100)
        Exchange(link, Plan(Zeros(), "ring")).all_reduce(bucket)
        return float(bucket.abs().max())

    assert run_ranks(2, rank, links=sockets(2, 30.0)) == [0.0, 0.0]
    assert set(native_runs) == {0, 1}
