"""Which tensors an exchange can change in place, and what is said of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from gradwire.api import check_in_place
from gradwire.errors import TensorError


def refusal(tensor: Any) -> str:
    with pytest.raises(TensorError) as caught:
        check_in_place(tensor, "the test")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4)


NO_VALUES: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.ones(3, device="meta"),
    "freed": freed,
    "fake": fake,
    "zeros that are not there": lambda: torch._efficientzerotensor(3),
}


def test_a_parameter_that_has_no_shape_yet_is_refused() -> None:
    assert "got a lazy parameter without values; run a forward pass" in refusal(torch.nn.LazyLinear(3).weight)


@pytest.mark.parametrize("name", NO_VALUES)
def test_a_tensor_without_values_in_memory_is_refused(name: str) -> None:
    assert "the test: expected a tensor with values in memory, got a" in refusal(NO_VALUES[name]())


def test_a_tensor_that_a_transform_stands_behind_is_refused() -> None:
    def check(x: torch.Tensor) -> torch.Tensor:
        check_in_place(x, "the test")
        return x.sum()

    for transform in (torch.vmap(check), torch.func.grad(check)):
        with pytest.raises(TensorError, match="values in memory"):
            transform(torch.ones(3))


FOREIGN = [
    None,
    1.0,
    [torch.ones(3)],
    np.ones(3),
    torch.nn.Linear(2, 2),
    torch.nn.Linear(2, 2).parameters(),
    "x",
]


@pytest.mark.parametrize("thing", FOREIGN, ids=lambda thing: type(thing).__name__)
def test_something_else_than_a_tensor_is_refused(thing: object) -> None:
    assert f"expected one torch tensor, got a {type(thing).__name__}; pass one tensor per call" in refusal(
        thing
    )


def test_a_dtype_that_is_no_float_is_refused_with_what_to_write() -> None:
    assert refusal(torch.ones(3, dtype=torch.int64)) == (
        "the test: expected a floating point tensor, got torch.int64; write averaged = the "
        "test(tensor.float()), and use the returned tensor"
    )
    assert "torch.complex64; pass torch.view_as_real(tensor)" in refusal(torch.ones(3, dtype=torch.complex64))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3).expand(2, 3),
        torch.ones(1).expand(4),
        torch.arange(9.0).unfold(0, 3, 1),
        torch.ones(9).as_strided((3, 3), (2, 1)),
    ],
    ids=["rows", "one value", "windows", "overlapping rows"],
)
def test_elements_that_share_memory_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(TensorError, match="got elements that share memory"):
        check_in_place(tensor, "the test")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=3))
def test_no_tensor_whose_elements_share_an_address_is_taken(axes: Sequence[tuple[int, int]]) -> None:
    """It may refuse one whose addresses only interleave; whatever torch lays out by itself it takes."""
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    addresses = [
        sum(place * stride for place, stride in zip(places, strides, strict=True))
        for places in product(*map(range, sizes))
    ]
    tensor = torch.zeros(max(addresses, default=0) + 1).as_strided(sizes, strides)
    if len(set(addresses)) < len(addresses):
        assert "got elements that share memory" in refusal(tensor)
    own = torch.zeros(sizes)
    check_in_place(own, "the test")
    check_in_place(own.permute(list(reversed(range(own.dim())))), "the test")
    check_in_place(own[..., ::2] if own.dim() else own, "the test")
