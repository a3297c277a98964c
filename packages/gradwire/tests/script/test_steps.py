from __future__ import annotations

import time

import pytest
import torch
from torch.autograd import Variable

from gradwire.script.steps import DeviceMarks, HostMarks, after_backward, marks_of


def test_on_the_host_a_mark_is_the_time() -> None:
    marks = marks_of(torch.device("cpu"))
    assert isinstance(marks, HostMarks)
    before = marks.now()
    time.sleep(0.01)
    assert 0.01 <= marks.seconds(marks.now()) - marks.seconds(before) < 5


class FakeEvent:
    """An event whose work is done a millisecond after that of the one before."""

    made = 0

    def __init__(self, device: str, *, enable_timing: bool) -> None:
        assert (device, enable_timing) == ("cuda", True)
        self.recorded, self.waited = -1, False

    def record(self) -> None:
        FakeEvent.made += 1
        self.recorded = FakeEvent.made

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, later: FakeEvent) -> float:
        assert later.waited, "torch refuses an event that is not done"
        return float(later.recorded - self.recorded)


def test_on_a_device_marks_are_events_of_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Event", FakeEvent)
    marks = marks_of(torch.device("cuda", 0))
    assert isinstance(marks, DeviceMarks)
    first, second = marks.now(), marks.now()
    assert (marks.seconds(first), marks.seconds(second)) == pytest.approx((0.001, 0.002))


def test_it_comes_after_all_that_others_queue() -> None:
    order: list[str] = []
    weight = torch.ones(2, requires_grad=True)

    def first(_gradient: torch.Tensor) -> None:
        after_backward(lambda: order.append("ours"))
        Variable._execution_engine.queue_callback(lambda: order.append("DDP's"))

    other = torch.ones(2, requires_grad=True)
    weight.register_hook(first)  # type: ignore[no-untyped-call]
    other.register_hook(lambda _: order.append("backward"))  # type: ignore[no-untyped-call]
    (weight.square() + other * 3).sum().backward()  # type: ignore[no-untyped-call]
    assert order[-1] == "ours"
    assert sorted(order) == ["DDP's", "backward", "ours"]
