"""The calls that an accelerator gets, and in which order: torch's module is a list of them here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gradwire.devices import staging
from gradwire.devices.staging import Cuda, CudaStream

CALLS: list[str] = []


class Event:
    """What a stream has recorded."""

    def synchronize(self) -> None:
        CALLS.append("the host waits")


class _Stream:
    """A stream by its name."""

    def __init__(self, name: str = "ours") -> None:
        self.name = name

    def wait_stream(self, other: _Stream) -> None:
        CALLS.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)
        CALLS.append(f"{self.name} waits for the event")

    def record_event(self) -> Event:
        CALLS.append(f"{self.name} records")
        return Event()


class Module:
    """What ``torch.cuda`` offers."""

    @staticmethod
    def Stream(device: torch.device) -> _Stream:  # noqa: N802 - torch's name
        assert device == torch.device("cpu")
        return _Stream()

    @staticmethod
    def current_stream(device: torch.device) -> _Stream:
        assert device == torch.device("cpu")
        return _Stream("theirs")

    @staticmethod
    @contextmanager
    def stream(stream: _Stream) -> Iterator[None]:
        CALLS.append(f"on {stream.name}")
        yield
        CALLS.append(f"off {stream.name}")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> CudaStream:
    """Return a stream of the CPU, whose copies happen at once."""

    def recorded(tensor: torch.Tensor, by: Any) -> None:  # noqa: ARG001 - the tensor is any
        CALLS.append(f"memory until {by.name} is done")

    monkeypatch.setattr(torch, "get_device_module", lambda _: Module)
    monkeypatch.setattr(torch.Tensor, "record_stream", recorded)
    CALLS.clear()
    return CudaStream(torch.device("cpu"))


def test_a_stream_follows_the_current_one(stream: CudaStream) -> None:
    stream.follow()
    assert CALLS == ["ours waits for theirs"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_load_copies_on_its_stream_and_keeps_the_memory(stream: CudaStream, dtype: torch.dtype) -> None:
    tensor, host = torch.tensor([[1, 2], [3, 4]], dtype=dtype).t(), torch.zeros(4)
    event = stream.load(host, tensor)
    assert host.tolist() == [1, 3, 2, 4], "in the order of the indices"
    assert CALLS == ["on ours", "off ours", "memory until ours is done", "ours records"]
    CALLS.clear()
    event.wait()
    event.order()
    assert CALLS == ["the host waits", "theirs waits for the event"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_store_rounds_and_scatters_on_its_stream(stream: CudaStream, dtype: torch.dtype) -> None:
    memory = torch.zeros(2, 2, dtype=dtype)
    stream.store(memory.t(), torch.tensor([1.0, 2.0, 3.0, 1 / 3]))
    assert memory.tolist() == [[1, 3], [2, torch.tensor(1 / 3, dtype=dtype).item()]]
    assert CALLS == ["on ours", "off ours", "memory until ours is done", "ours records"]


def test_what_torch_negates_later_is_negated_in_both_directions(stream: CudaStream) -> None:
    tensor = torch.complex(torch.zeros(2), torch.tensor([1.0, 2.0])).conj().imag
    assert tensor.is_neg()
    host = torch.zeros(2)
    stream.load(host, tensor)
    assert host.tolist() == [-1, -2]
    stream.store(tensor, torch.tensor([5.0, 6.0]))
    assert tensor.tolist() == [5, 6]


def test_what_was_made_in_inference_mode_can_be_stored_to(stream: CudaStream) -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2)
    stream.store(tensor, torch.ones(2))
    assert tensor.tolist() == [1, 1]


def test_a_future_is_completed_where_the_stream_is_current(stream: CudaStream) -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    future.then(lambda _: CALLS.append("completed"))
    stream.complete(future, 7)
    assert future.value() == 7
    assert CALLS == ["on ours", "completed", "off ours"]


def test_an_accelerator_is_one_object_that_is_called_by_its_device() -> None:
    device = torch.device("meta")
    assert staging.cuda(device) is staging.cuda(torch.device("meta"))
    assert str(Cuda(device)) == "meta"
    assert Cuda(device).zeros(3).is_meta
    assert Cuda(device).zeros(3).dtype is torch.float32
