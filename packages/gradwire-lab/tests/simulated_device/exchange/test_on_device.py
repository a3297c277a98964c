"""Buckets on a simulated device give the host's frames and the host's bits, and cross its bus encoded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from unittest import mock

import pytest
import torch

from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.errors import ExchangeError, MissingPackageError, TensorError
from gradwire.exchange import Exchange, Norms
from gradwire.gpu.table import SIZE_NBYTES, STATUS_NBYTES, format_of
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES, frame_memory, seal_frame
from gradwire_lab.simulated_device.simulated import Simulated
from support import gpu_cases
from support.device_waits import check_each_wait
from support.ranks import run_ranks

Devices = list[Simulated | None]
WAYS = [
    *((world, "ring", "bf16") for world in (1, 2, 3, 4)),
    *((2, algorithm, "fp8") for algorithm in ("ring", "tree")),
    *((3, algorithm, "bf16") for algorithm in ("butterfly", "pairwise", "star")),
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
    """A rank of a ring of two encodes a partial chunk and its own sum, and decodes two of others."""
    n, chunk = 120, 60
    for spec, encoded in (("bf16", 2 * chunk), ("errbound:2^-10", chunk // 4 + SIZE_NBYTES)):
        devices = [Simulated(), Simulated()]
        zeros = spec.startswith("errbound")  # so that the payloads' sizes are known

        def x(n: int, rank: int, zeros: bool = zeros) -> torch.Tensor:
            return torch.zeros(n) if zeros else gpu_cases.gradient(n, rank)

        for result in run_ranks(2, reduced, devices, Plan(parse(spec)), x, n, True):
            payload = encoded - (SIZE_NBYTES if zeros else 0)
            decoded = 2 * (payload + STATUS_NBYTES)
            assert result.cost.device_nbytes == 2 * encoded + decoded + STATUS_NBYTES


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
    """Without any one of its waits, a rank fails, or some rank has other values or counts."""
    plan = Plan(parse("bf16"))

    def results(first: Simulated) -> list[tuple[list[float], int]]:
        found = run_ranks(2, reduced, [first, Simulated()], plan, gpu_cases.gradient, 40, True, timeout_s=2.0)
        return [(each.values.tolist(), each.cost.nonfinite) for each in found]

    device = check_each_wait(results)
    assert set(device.waits) == {"wait"}, "nothing else of a stream is waited for"


def test_each_of_its_waits_is_needed(interpreted: Callable[..., Any]) -> None:
    interpreted(check_waits)


Kept = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, ExchangeCost]


def kept(
    link: Link,
    devices: Devices,
    plan: Plan,
    x: Callable[[int, int], torch.Tensor],
    n: int,
    steps: int,
    is_beside: bool,
) -> list[Kept]:
    """All-reduce buckets, one after the other: each one's bits, the residual's, its sums, and its cost."""
    device, exchange, norms = devices[link.rank], Exchange(link, plan), Norms([0, n // 3, n // 3, n - 5, n])
    residual = gpu_cases.gradient(n, 7 + link.rank).clamp(-1, 1) if plan.keeps_residual else None
    if device is not None and residual is not None and is_beside:
        device.own(residual)
    found = []
    for step in range(steps):
        tensor = x(n, link.rank + step)
        if device is not None:
            device.own(tensor)
        cost = exchange.all_reduce(tensor, residual=residual, norms=norms)
        lost = None if residual is None else residual.view(torch.int32).clone()
        found.append((tensor.view(torch.int32).clone(), lost, norms.sums.clone(), cost))
    return found


def layers(n: int, rank: int) -> torch.Tensor:
    """Return a gradient with an infinity on one rank."""
    x = gpu_cases.gradients_of_layers(n)
    return x if rank == 1 else x.nan_to_num(posinf=0.0)


def check_kept(world: int, algorithm: str, spec: str, n: int, values: str = "gradient") -> None:
    plan = Plan(parse(spec.partition("+")[0]), algorithm, SEGMENT_UNIT_NBYTES, residual=spec.endswith("+"))
    x = layers if values == "layers" else gpu_cases.gradient
    expected = run_ranks(world, kept, [None] * world, plan, x, n, 2, True)
    devices = [Simulated() for _ in range(world)]
    found = run_ranks(world, kept, devices, plan, x, n, 2, True)
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert torch.equal(one[0], other[0])
        assert (one[1] is None and other[1] is None) or torch.equal(one[1], other[1])
        torch.testing.assert_close(one[2], other[2], rtol=1e-12, atol=0.0, equal_nan=True)
        assert one[3].nonfinite == other[3].nonfinite
    assert all(set(device.waits) == {"wait"} for device in devices)


@pytest.mark.parametrize(
    ("world", "algorithm", "spec", "n"),
    [
        (2, "ring", "quantize:4+", 200),
        (3, "ring", "topk:0.1+", 400),
        (2, "tree", "errbound:2^-10+", 300),  # a size of its own for each payload; one rank only sends
        (2, "ring", "identity+", 100),  # loses nothing
        (2, "ring", "bf16", 2 * 4096 + 2000),  # several segments, and programs with parts of ranges
        (2, "star", "fp8", 200),
    ],
)
def test_residuals_and_sums_of_squares_stay_there(
    interpreted: Callable[..., Any], world: int, algorithm: str, spec: str, n: int
) -> None:
    interpreted(check_kept, world, algorithm, spec, n)


@pytest.mark.parametrize("spec", ["quantize:8+", "quantize:8"])
def test_a_residual_stays_as_it_was_where_a_sum_is_not_finite(
    interpreted: Callable[..., Any], spec: str
) -> None:
    interpreted(check_kept, 2, "ring", spec, 300, "layers")


def check_kept_crossings() -> None:
    """A residual costs the bus nothing; sums of squares their own bytes."""
    n, nbytes = 120, dict[bool, int]()
    for keeps in (False, True):
        plan = Plan(parse("bf16"), residual=keeps)
        (_, _, sums, cost), *_ = run_ranks(
            2, kept, [Simulated(), Simulated()], plan, gpu_cases.gradient, n, 1, True
        )[0]
        nbytes[keeps] = cost.device_nbytes - sums.nbytes - 8 * 5
    assert nbytes[False] == nbytes[True] == 4 * n + 3 * STATUS_NBYTES


def test_a_residual_does_not_cross_the_bus(interpreted: Callable[..., Any]) -> None:
    interpreted(check_kept_crossings)


def test_a_bucket_is_copied_for_a_residual_on_the_host_and_that_is_counted() -> None:
    plan, n = Plan(parse("quantize:4"), residual=True), 200
    way = plan, gpu_cases.gradient, n, 1, False
    expected = run_ranks(2, kept, [None, None], *way)
    found = run_ranks(2, kept, [Simulated(), Simulated()], *way)
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))
        assert (one[3].device_nbytes, other[3].device_nbytes) == (8 * n, 0)


def test_a_residual_on_the_device_is_copied_with_its_bucket_for_a_codec_without_kernels() -> None:
    plan, n = Plan(parse("ecsq:1"), residual=True), 200
    way = plan, gpu_cases.gradient, n, 2, True
    expected = run_ranks(2, kept, [None, None], *way)
    found = run_ranks(2, kept, [Simulated(), Simulated()], *way)
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))
        assert (one[3].device_nbytes, other[3].device_nbytes) == (16 * n, 0)


def test_a_residual_elsewhere_is_refused() -> None:
    (link,) = loopback(1)
    with pytest.raises(
        TensorError, match=r"expected a residual on the CPU or on the tensor's device .*, got one"
    ):
        Exchange(link, Plan(parse("fp8"))).all_reduce(torch.ones(4), residual=Simulated().zeros(4))


@pytest.mark.parametrize("spec", ["ecsq:1", "lossless"])
def test_a_bucket_is_copied_for_a_codec_without_kernels(spec: str) -> None:
    plan, n = Plan(parse(spec), residual=False), 100
    expected = run_ranks(2, reduced, [None, None], plan, gpu_cases.gradient, n, True)
    found = run_ranks(2, reduced, [Simulated(), Simulated()], plan, gpu_cases.gradient, n, True)
    check_same(found, expected, spec)
    assert [each.cost.device_nbytes for each in found] == [8 * n, 8 * n]


def test_without_triton_one_sentence_names_the_host_s_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradwire.gpu.fp8", None)
    format_of.cache_clear()
    (link,) = loopback(1)
    bucket = Simulated().own(torch.ones(4))
    with pytest.raises(MissingPackageError, match=r"needs the package triton.* Plan\(encode_on='host'\)$"):
        Exchange(link, Plan(parse("fp8"))).all_reduce(bucket)
    assert bucket.tolist() == [1.0] * 4
