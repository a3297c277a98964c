"""``all_reduce`` changes every float tensor in place, whatever its dtype and layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire.errors import ExchangeError

RunProcesses = Callable[..., list[Any]]

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda base: base,
    "transposed": lambda base: base.t(),
    "with gaps": lambda base: base[::2, 1::3],
    "one element": lambda base: base[2, 2],
    "channels last": lambda base: base.view(3, 2, 2, 15).to(memory_format=torch.channels_last),
}


def base(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(6, 30, generator=torch.Generator().manual_seed(rank)).to(dtype)


def every_kind(spec: str) -> dict[tuple[torch.dtype, str], bytes]:
    """Check what came of every kind of tensor; return its bytes."""
    results = {}
    for dtype in DTYPES:
        for name, layout in LAYOUTS.items():
            shares = [layout(base(rank, dtype)).float() for rank in range(2)]
            whole = base(dist.get_rank(), dtype)
            tensor = layout(whole)
            before = whole.clone().float()
            assert gradwire.all_reduce(tensor, spec) is tensor
            exact = (shares[0] + shares[1]) / 2
            if spec == "identity":
                assert torch.equal(tensor.float(), exact.to(dtype).float()), (dtype, name)
            else:
                bound = 2 * gradwire.parse(spec).bound((shares[0].abs() + shares[1].abs()).flatten())
                rounding = exact.abs() * torch.finfo(dtype).eps + torch.finfo(dtype).smallest_normal
                assert ((tensor.float() - exact).abs() <= bound + rounding).all(), (dtype, name)
            if tensor._base is whole:
                assert int((whole.float() != before).sum()) <= tensor.numel(), "something else has changed"
            results[dtype, name] = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return results


@pytest.mark.processes
@pytest.mark.parametrize("spec", ["identity", "fp8"])
def test_every_dtype_and_layout_is_averaged_in_place(run_processes: RunProcesses, spec: str) -> None:
    first, second = run_processes(2, every_kind, spec)
    assert len(first) == len(DTYPES) * len(LAYOUTS)
    assert first == second, "all ranks end with identical bits"


def unlike() -> list[list[float]]:
    rank = dist.get_rank()
    values = torch.arange(6.0).view(2, 3) * (1 + rank)
    transposed = values.t().contiguous().t()
    results = [gradwire.all_reduce(transposed if rank else values.clone(), "identity").flatten().tolist()]
    with torch.inference_mode():
        made_in_inference = values.to(torch.bfloat16)
    results.append(gradwire.all_reduce(made_in_inference, "identity").flatten().tolist())
    parameter = torch.nn.Parameter(values.half())
    gradwire.all_reduce(parameter, "identity")
    assert parameter.requires_grad
    assert parameter.is_leaf
    results.append(parameter.flatten().tolist())
    with torch.device("meta"), torch.inference_mode():
        results.append(gradwire.all_reduce(values.double()[:], "identity").flatten().tolist())
    activation = parameter * 1.0
    gradwire.all_reduce(activation, "identity")
    results.append(activation.flatten().tolist())
    return results


@pytest.mark.processes
def test_ranks_may_hold_their_shares_in_unlike_ways(run_processes: RunProcesses) -> None:
    expected = [1.5 * value for value in range(6)]
    assert run_processes(2, unlike) == [[expected] * 5] * 2


def rounded_once() -> list[float]:
    """1 + 2^-8 + 2^-8 is a bf16; sums that were bf16 themselves would stay at 1, rounded to even."""
    first = dist.get_rank() == 0
    near = torch.tensor([1.0 if first else 2.0**-8, -0.0], dtype=torch.bfloat16)
    double = torch.tensor([1 + 2.0**-40 * first, 1e300, 2.0**-140], dtype=torch.float64)
    return [
        *gradwire.all_reduce(near, "identity", average=False).tolist(),
        *gradwire.all_reduce(double, "identity").tolist(),
    ]


@pytest.mark.processes
def test_results_are_those_of_float32_rounded_once(run_processes: RunProcesses) -> None:
    expected = [1 + 2.0**-7, 0.0, 1.0, float("inf"), 2.0**-140]
    assert run_processes(3, rounded_once) == [expected] * 3


def failing() -> tuple[list[float], list[float]]:
    rank = dist.get_rank()
    tensor = torch.full((5,), float(rank), dtype=torch.bfloat16)
    with pytest.raises(ExchangeError):
        gradwire.all_reduce(tensor, "bf16" if rank else "fp16", timeout_s=5.0)
    before = tensor.tolist()
    dist.barrier()
    return before, gradwire.all_reduce(tensor, "identity").tolist()


@pytest.mark.processes
def test_a_copied_tensor_is_as_it_was_after_a_failure(run_processes: RunProcesses) -> None:
    for rank, (before, after) in enumerate(run_processes(2, failing)):
        assert before == [float(rank)] * 5
        assert after == [0.5] * 5
