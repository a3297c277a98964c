"""Buckets on a simulated device give the host's frames and the host's bits, and cross its bus encoded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch

from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.devices import Simulated, on_host
from gradwire.errors import ExchangeError, GradwireError, MissingPackageError
from gradwire.exchange import Exchange, Norms
from gradwire.gpu.contract import SIZE_NBYTES, STATUS_NBYTES
from gradwire.gpu.table import format_of
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES, frame_memory, seal_frame
from support import gpu_cases
from support.ranks import run_ranks

Devices = list[Simulated | None]
WAYS = [
    *((world, "ring", "bf16") for world in (1, 2, 3, 4)),
    *((2, algorithm, "fp8") for algorithm in ("ring", "tree")),
    *((3, algorithm, "bf16") for algorithm in ("butterfly", "star")),
    *((4, algorithm, "bf16") for algorithm in ("butterfly", "tree", "hierarchical:2,ring+star")),
]


@dataclass
class Result:
    """What one rank has after an all-reduce."""

    values: torch.Tensor
    cost: ExchangeCost
    frames: list[tuple[int, list[int]]] = field(default_factory=list)


def reduced(
    link: Link, devices: Devices, plan: Plan, x: Callable[[int, int], torch.Tensor], n: int, average: bool
) -> Result:
    """All-reduce this rank's bucket, on its device."""
    frames, send, device = list[tuple[int, list[int]]](), link.isend, devices[link.rank]

    def isend(peer: int, frame: torch.Tensor) -> Any:
        frames.append((peer, frame.tolist()))
        return send(peer, frame)

    tensor = x(n, link.rank)
    if device is not None:
        device.own(tensor)
    with mock.patch.object(link, "isend", isend):
        cost = Exchange(link, plan).all_reduce(tensor, average)
    return Result(tensor.clone(), cost, frames)


def check_same(found: Iterable[Result], expected: Iterable[Result], what: str) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.frames == other.frames, f"{what}: other frames"
        gpu_cases.assert_same_bits(one.values, other.values, what)
        for name in ("raw_nbytes", "wire_nbytes", "frames", "nonfinite"):
            assert getattr(one.cost, name) == getattr(other.cost, name), f"{what}: {name}"


def check_all_reduce(world: int, algorithm: str, spec: str, n: int, average: bool = True) -> None:
    plan = Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES)
    expected = run_ranks(world, reduced, [None] * world, plan, gpu_cases.gradient, n, average)
    devices: Devices = [None if rank == 1 else Simulated() for rank in range(world)]
    found = run_ranks(world, reduced, devices, plan, gpu_cases.gradient, n, average)
    check_same(found, expected, f"{plan} of {world}")
    for result, device in zip(found, devices, strict=True):
        assert (result.cost.device_nbytes > 0) == (device is not None)


@pytest.mark.parametrize(("world", "algorithm", "spec"), WAYS)
def test_frames_and_results_are_those_of_the_host_with_and_without_devices(
    interpreted: Callable[..., Any], world: int, algorithm: str, spec: str
) -> None:
    interpreted(check_all_reduce, world, algorithm, spec, 150)


@pytest.mark.parametrize(
    ("spec", "n", "average"),
    [
        ("errbound:rel=0.05,block=64", 300, True),  # a size of its own for each payload
        ("identity", 2, False),  # a rank's chunk is empty
        ("bf16", 2 * 4096 + 2000, True),  # several segments
    ],
)
def test_so_are_payloads_of_any_size(
    interpreted: Callable[..., Any], spec: str, n: int, average: bool
) -> None:
    interpreted(check_all_reduce, 2 if n > 2 else 3, "ring", spec, n, average)


def check_non_finite() -> None:
    plan = Plan(parse("quantize:8"), "ring", SEGMENT_UNIT_NBYTES)
    expected, found = (
        run_ranks(2, reduced, devices, plan, lambda n, _: gpu_cases.gradients_of_layers(n), 300, True)
        for devices in ([None, None], [Simulated(), Simulated()])
    )
    check_same(found, expected, "an infinity")
    assert all(each.cost.nonfinite == 1 for each in found)


def test_what_is_not_finite_is_told(interpreted: Callable[..., Any]) -> None:
    interpreted(check_non_finite)


def check_crossings() -> None:
    """A rank of a ring of two encodes a partial chunk and its own sum, and decodes this and two of others."""
    n, devices = 120, [Simulated(), Simulated()]
    for result in run_ranks(2, reduced, devices, Plan(parse("bf16")), gpu_cases.gradient, n, True):
        chunk_nbytes = 2 * (n // 2)
        encoded, decoded = 2 * (chunk_nbytes + SIZE_NBYTES), 3 * (chunk_nbytes + STATUS_NBYTES)
        assert result.cost.device_nbytes == encoded + decoded + STATUS_NBYTES


def test_what_crosses_the_bus_is_counted(interpreted: Callable[..., Any]) -> None:
    interpreted(check_crossings)


def check_malformed() -> None:
    """A frame whose checksum is right and whose payload is none: the bucket stays as it was."""
    codec, n, device = parse("quantize:8"), 64, Simulated()
    plan = Plan(codec, "star", SEGMENT_UNIT_NBYTES)
    bucket = device.own(torch.ones(n))

    def act(link: Link) -> str:
        if link.rank == 0:
            with pytest.raises(ExchangeError, match="a scale is negative or infinite") as caught:
                Exchange(link, plan).reduce(bucket)
            return str(caught.value)
        frame = frame_memory(HEADER_NBYTES + codec.max_nbytes(n))
        frame[HEADER_NBYTES:] = 0xFF
        sealed = seal_frame(
            frame,
            codec.max_nbytes(n),
            codec_id=codec.wire_id,
            fingerprint=codec.fingerprint,
            count=n,
            sequence=0,
        )
        link.isend(0, sealed).wait(5.0)
        return ""

    told, _ = run_ranks(2, act)
    assert told.startswith("step 0 of the star reduce, segment 0 of chunk 0: rank 0 receiving from rank 1")
    assert on_host(bucket).tolist() == [1.0] * n


def test_a_malformed_payload_changes_nothing(interpreted: Callable[..., Any]) -> None:
    interpreted(check_malformed)


def check_waits() -> None:
    """Without any one of its waits a rank fails, or somebody has other values or counts."""
    plan = Plan(parse("bf16"))

    def results(first: Simulated) -> list[tuple[list[float], int]]:
        found = run_ranks(2, reduced, [first, Simulated()], plan, gpu_cases.gradient, 40, True, timeout_s=2.0)
        return [(each.values.tolist(), each.cost.nonfinite) for each in found]

    device = Simulated()
    expected, needless = results(device), []
    assert set(device.waits) == {"wait"}, "nothing else of a stream is waited for"
    for number in range(device.waits["wait"]):
        try:
            if results(Simulated(without=("wait", number))) == expected:
                needless.append(number)
        except (GradwireError, IndexError, OverflowError, RuntimeError):
            pass
    assert not needless


def test_each_of_its_waits_is_needed(interpreted: Callable[..., Any]) -> None:
    interpreted(check_waits)


def copied(link: Link, devices: Devices, plan: Plan, n: int) -> tuple[list[list[float]], ExchangeCost]:
    """All-reduce a bucket with what the host alone can do."""
    tensor, norms = gpu_cases.gradient(n, link.rank), Norms([0, n // 3, n])
    residual = gpu_cases.gradient(n, 7 + link.rank) if plan.keeps_residual else None
    device = devices[link.rank]
    if device is not None:
        device.own(tensor)
    cost = Exchange(link, plan).all_reduce(tensor, residual=residual, norms=norms)
    kept = [] if residual is None else residual.tolist()
    return [tensor.tolist(), kept, *norms.sums.tolist()], cost


@pytest.mark.parametrize("plan", [Plan(parse("quantize:4"), residual=True), Plan(parse("fp8"))])
def test_a_bucket_is_copied_for_residuals_and_norms_and_that_is_counted(plan: Plan) -> None:
    n = 200
    expected = run_ranks(2, copied, [None, None], plan, n)
    found = run_ranks(2, copied, [Simulated(), Simulated()], plan, n)
    assert [values for values, _ in found] == [values for values, _ in expected]
    assert [cost.device_nbytes for _, cost in found] == [8 * n, 8 * n]
    assert [cost.device_nbytes for _, cost in expected] == [0, 0]


@pytest.mark.parametrize("spec", ["topk:0.1", "lossless"])
def test_a_bucket_is_copied_for_a_codec_without_kernels(spec: str) -> None:
    plan, n = Plan(parse(spec), residual=False), 100
    expected = run_ranks(2, reduced, [None, None], plan, gpu_cases.gradient, n, True)
    found = run_ranks(2, reduced, [Simulated(), Simulated()], plan, gpu_cases.gradient, n, True)
    check_same(found, expected, spec)
    assert [each.cost.device_nbytes for each in found] == [8 * n, 8 * n]


def test_without_triton_one_sentence_names_the_host_s_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradwire.gpu.formats.fp8", None)
    format_of.cache_clear()
    (link,) = loopback(1)
    bucket = Simulated().own(torch.ones(4))
    with pytest.raises(MissingPackageError, match=r"needs the package triton.* Plan\(encode_on='host'\)$"):
        Exchange(link, Plan(parse("fp8"))).all_reduce(bucket)
    assert bucket.tolist() == [1.0] * 4
