"""Stand-ins hold a tensor's values in the order of its indices, and give them back where they came from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gradwire.api import check_in_place
from gradwire.devices import Staged, Staging, device_of
from gradwire_lab.simulated_device.simulated import Simulated

Layout = Callable[[torch.Tensor], torch.Tensor]

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda base: base,
    "transposed": lambda base: base.t(),
    "with gaps": lambda base: base[1::2, 2:7:3],
    "one column": lambda base: base[:, 3],
    "one element": lambda base: base[2, 2],
    "empty": lambda base: base[:, :0],
    "channels last": lambda base: base.view(3, 2, 2, 6).to(memory_format=torch.channels_last),
    "stride 0, but one element": lambda base: base[:1, :1].as_strided((1, 1), (0, 0)),
}


Put = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(params=["cpu", "simulated"])
def put(request: pytest.FixtureRequest) -> Put:
    """Returns a tensor that is on this device."""
    return (lambda tensor: tensor) if request.param == "cpu" else Simulated().own


def arrive(staged: Staged) -> None:
    """Let what was stored arrive, as the current stream's next kernel would."""
    staged.store().order()
    if isinstance(device := device_of(staged.tensor), Simulated):
        device.current.run()


def test_float32_on_the_cpu_stands_in_for_itself() -> None:
    tensor = torch.randn(5)
    staged = Staged(tensor)
    assert staged.floats().data_ptr() == tensor.data_ptr()
    arrive(staged)
    assert Staging().stand_in(tensor).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_widened_exactly_and_rounded_on_their_way_back(dtype: torch.dtype, put: Put) -> None:
    staging = Staging()
    for count in (3, 9, 4):
        tensor = put(torch.randn(count).to(dtype))
        before = tensor.clone()
        with torch.inference_mode():
            stand_in = staging.stand_in(tensor)
        staged = Staged(tensor, stand_in, staging)
        assert torch.equal(staged.floats(), before.float())
        stand_in.mul_(1.001)
        arrive(staged)
        assert torch.equal(tensor, (before.float() * 1.001).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_gathered_by_index_and_scattered_back(
    layout: str, dtype: torch.dtype, put: Put
) -> None:
    base = put(torch.linspace(-4, 5, 72).view(6, 12).to(dtype))  # of which none becomes 0
    tensor = LAYOUTS[layout](base)
    put(tensor)
    check_in_place(tensor, "the test")
    before, around = tensor.clone().float(), base.clone().float()
    staged = Staged(tensor)
    stand_in = staged.floats()
    assert stand_in.is_contiguous()
    assert stand_in.tolist() == before.flatten().tolist()
    stand_in.mul_(-3)
    arrive(staged)
    assert torch.equal(tensor.float(), (-3 * before).to(dtype).float())
    if tensor._base is base:
        assert int((base.float() != around).sum()) == tensor.numel(), "nothing else has changed"


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_the_imaginary_part_of_a_conjugate_keeps_its_sign(dtype: torch.dtype, put: Put) -> None:
    number = put(torch.complex(torch.ones(3), torch.tensor([1.0, -2.0, 3.0])).to(dtype))
    tensor = number.conj().imag
    assert tensor.is_neg()
    staged = Staged(tensor)
    assert staged.floats().tolist() == [-1.0, 2.0, -3.0]
    staged.floats().mul_(2)
    arrive(staged)
    assert number.imag.tolist() == [2.0, -4.0, 6.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_was_made_in_inference_mode_is_written_outside(dtype: torch.dtype, put: Put) -> None:
    with torch.inference_mode():
        tensor = put(torch.ones(4, 4, dtype=dtype)[:, 1])
    staged = Staged(tensor)
    staged.floats().mul_(2)
    arrive(staged)
    assert tensor.tolist() == [2.0] * 4


def test_autograd_learns_that_a_copied_tensor_has_changed(put: Put) -> None:
    weight = torch.nn.Parameter(put(torch.ones(3, dtype=torch.float64)))
    loss = (weight * weight).sum()
    staged = Staged(weight)
    staged.floats()
    arrive(staged)
    assert weight.is_leaf
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
