"""On the CPU a tensor's own memory is the host's, and other tensors are copied once, by whoever waits."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from gradwire.devices import base
from gradwire.devices.base import CPU, CPU_STREAM, bring_back, fetch, serves


def test_contiguous_float32_alone_serves_itself() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert serves(x)
    assert serves(x[0])
    for other in (x.t(), x[:, :2], x.double(), x.half(), torch.complex(x, x).conj().imag):
        assert not serves(other)


def test_a_load_copies_once_and_not_before_somebody_waits() -> None:
    tensor, host = torch.arange(6, dtype=torch.float16).view(2, 3).t(), torch.full((6,), 9.0)
    event = CPU_STREAM.load(host, tensor)
    assert host.tolist() == [9.0] * 6
    event.wait()
    assert host.tolist() == [0, 3, 1, 4, 2, 5]
    host.fill_(7.0)
    event.wait()
    event.order()
    assert host.tolist() == [7.0] * 6, "what was written since stays"


def test_a_second_thread_waits_until_the_copy_of_the_first_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, begun, may_copy = torch.zeros(2), threading.Event(), threading.Event()

    def slow(*tensors: torch.Tensor) -> None:
        begun.set()
        may_copy.wait(30)
        fetch(*tensors)

    monkeypatch.setattr(base, "fetch", slow)
    event = CPU_STREAM.load(host, torch.ones(2, dtype=torch.float16))
    first = threading.Thread(target=event.wait)
    first.start()
    assert begun.wait(30)
    threading.Timer(0.1, may_copy.set).start()
    event.wait()
    assert host.tolist() == [1.0, 1.0]
    first.join()


def test_the_tensors_own_memory_is_not_copied() -> None:
    tensor = torch.tensor([1.0, float("nan")])
    CPU_STREAM.load(tensor.view(-1), tensor).wait()
    version = tensor._version
    CPU_STREAM.store(tensor, tensor.view(-1)).wait()
    assert tensor._version == version


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_store_rounds_to_nearest_even_into_any_layout(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-8), 65519.0, 1e-8])
    tensor = torch.zeros(6, 2, dtype=dtype)[:, 0]
    CPU_STREAM.store(tensor, values)
    if dtype is torch.float16:
        assert np.array_equal(tensor.numpy(), values.numpy().astype(np.float16))
    elif dtype is torch.float64:
        assert np.array_equal(tensor.numpy(), values.numpy().astype(np.float64))
    else:
        assert tensor[:4].tolist() == [1.0, 1.0, 1.0, -1.0]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_lazily_negated_tensor_keeps_its_sign_both_ways(dtype: torch.dtype) -> None:
    pairs = torch.tensor([[0.0, 1.0], [0.0, -2.0], [0.0, 3.0]], dtype=dtype)
    view, host = torch.view_as_complex(pairs).conj().imag, torch.zeros(3)
    assert view.is_neg()
    fetch(host, view)
    assert host.tolist() == [-1.0, 2.0, -3.0]
    bring_back(view, torch.tensor([4.0, 5.0, 6.0]))
    assert pairs[:, 1].tolist() == [-4.0, -5.0, -6.0]


def test_the_cpu_gives_zeros_and_futures() -> None:
    assert (str(CPU), CPU.zeros(3).tolist(), CPU.pinned(5).shape) == ("cpu", [0.0] * 3, (5,))
    future = CPU.future()
    CPU_STREAM.complete(future, "result")
    assert future.wait() == "result"
