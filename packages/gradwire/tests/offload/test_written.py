from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradwire.offload.layers import WriteDetector


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        nn.Parameter(torch.randn(40, 30)),
        nn.Parameter(torch.randn(5)),
        nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)),
        torch.arange(3),
        torch.empty(0),
        torch.full((3,), torch.nan),
    ]


def send(own: WriteDetector) -> None:
    with own.sending():
        pass


def swap(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data * 2


def in_place(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def unseen_by_torch(tensor: torch.Tensor) -> None:
    tensor.data.mul_(2)


def by_numpy(tensor: torch.Tensor) -> None:
    tensor.detach().numpy()[:] *= 2


def through_detached(tensor: torch.Tensor) -> None:
    tensor.detach().mul_(2)


def with_foreach(tensor: torch.Tensor) -> None:
    torch._foreach_mul_([tensor.detach()], 2)


WRITES = [swap, in_place, unseen_by_torch, by_numpy, through_detached, with_foreach]


@pytest.mark.parametrize("write", WRITES)
def test_any_write_of_a_whole_tensor_is_found_once(write: Callable[[torch.Tensor], None]) -> None:
    for number in (0, 1):
        found, own = tensors(), None
        own = WriteDetector(found)
        assert own.find() == [], "a NaN is itself"
        write(found[number])
        assert own.find() == [number]
        assert own.find() == [number]
        send(own)
        assert own.find() == []
        write(found[number])
        assert own.find() == [number]


def test_all_at_once_and_tensors_without_samples_are_found() -> None:
    found = tensors()
    own = WriteDetector(found)
    for each in found[:4]:
        in_place(each)
    assert own.find() == [0, 1, 2, 3]
    send(own)
    for each in found:
        swap(each)
    assert own.find() == [0, 1, 2, 3, 5], "the empty one has no address"
    assert WriteDetector([]).find() == []


def test_tensors_of_inference_mode_and_copies_are_served() -> None:
    with torch.inference_mode():
        found = tensors()
        own = WriteDetector([each.detach() for each in found])
        assert own.find() == []
        send(own)
    found = [each.detach() for each in found]
    own = WriteDetector(found)
    with torch.inference_mode():
        found[0].add_(1)
    assert own.find() == [0]
    assert copy.copy(own).find() == [0]


def test_until_a_block_has_sent_them_other_threads_find_them() -> None:
    found = tensors()
    own = WriteDetector(found)
    in_place(found[0])
    with own.sending():
        assert own.find() == [0]
        in_place(found[1])
    assert own.find() == [1], "written after the block began"
    with pytest.raises(ZeroDivisionError), own.sending():
        raise ZeroDivisionError
    assert own.find() == [1], "it wasn't sent"
