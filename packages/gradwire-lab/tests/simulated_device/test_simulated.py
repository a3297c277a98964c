"""The simulated device is as late as a device may be, and punishes whoever does not wait."""

from __future__ import annotations

import time

import torch

from gradwire.devices import Staged, Staging, device_of, on_host
from gradwire_lab.simulated_device.simulated import Simulated


def on(device: Simulated, *values: float) -> torch.Tensor:
    return device.own(torch.tensor(values, dtype=torch.float32))


def test_memory_belongs_to_the_device_with_all_its_views_and_not_to_what_is_made_there_later() -> None:
    device = Simulated()
    tensor = device.own(torch.zeros(8))
    assert device_of(tensor[2:]) is device
    assert device_of(tensor.view(2, 4).t()) is device
    assert str(device_of(torch.zeros(8))) == "cpu"
    del tensor
    assert all(str(device_of(torch.zeros(8))) == "cpu" for _ in range(8))


def test_a_load_waits_for_the_kernels_before_and_the_host_for_the_load(device: Simulated) -> None:
    tensor = on(device, 1, 2)
    tensor.mul_(2)
    staged, staging = Staged(tensor), Staging()
    assert bool(torch.tensor(staged._floats.tolist()).isnan().all())
    assert staged.floats().tolist() == [2, 4]
    tensor.mul_(2)
    stream = device.stream()
    host = staging.stand_in(tensor).clone()
    stream.load(host, tensor).wait()
    assert bool(host.isnan().all()), "without follow it reads what no kernel has written yet"


def test_kernels_see_what_was_stored_only_after_order(device: Simulated) -> None:
    tensor = on(device, 1, 2)
    for orders in (True, False):
        staged = Staged(tensor)
        staged.floats().fill_(5)
        staged.store()
        if orders:
            staged.order()
        assert (tensor.sum().item() == 10) == orders


def test_a_store_into_memory_that_a_kernel_still_reads_spoils_it(device: Simulated) -> None:
    tensor, host = on(device, 1, 2), torch.full((2,), 7.0)
    for follows in (True, False):
        stream = device.stream()
        _ = tensor + 1
        if follows:
            stream.follow()
        stream.store(tensor, host).order()
        assert (tensor.sum().item() == 14) == follows


def test_host_memory_that_changes_before_its_copy_ran_is_copied_changed(device: Simulated) -> None:
    tensor, host = on(device, 1, 2), torch.full((2,), 7.0)
    event = device.stream().store(tensor, host)
    host.fill_(8)
    event.order()
    assert tensor.sum().item() == 16


def test_bytes_and_whole_numbers_and_what_has_gaps_come_to_the_host(device: Simulated) -> None:
    for dtype in (torch.int64, torch.bool, torch.uint8, torch.float16):
        tensor = device.own(torch.tensor([[1, 0], [1, 1]]).to(dtype))
        assert on_host(tensor.t()).tolist() == [[1, 1], [0, 1]]
        assert on_host(tensor.t()).dtype is dtype
    assert on_host(torch.ones(2)).tolist() == [1, 1]


def test_a_wait_can_be_left_out_by_its_name_and_number() -> None:
    device = Simulated(without=("wait", 1))
    tensor = device.own(torch.ones(2))
    found = [Staged(tensor).floats().clone() for _ in range(3)]
    assert [bool(each.isnan().any()) for each in found] == [False, True, False]
    assert dict(device.waits) == {"follow": 3, "wait": 3}


def test_copies_take_their_time_on_a_paced_link_in_each_direction_for_itself() -> None:
    device = Simulated(nbytes_per_s=4e5)
    tensors = [device.own(torch.zeros(10_000)) for _ in range(3)]  # 100 ms each
    streams = [device.stream() for _ in tensors]
    started = time.monotonic()
    loads = [stream.load(torch.empty(10_000), each) for stream, each in zip(streams, tensors, strict=True)]
    store = device.stream().store(device.own(torch.zeros(10_000)), torch.ones(10_000))
    assert time.monotonic() - started < 0.1, "queueing does not wait"
    store.wait()
    assert time.monotonic() - started >= 0.1
    loads[2].wait()
    assert time.monotonic() - started >= 0.3
    loads[0].wait()


def test_what_has_passed_meanwhile_is_not_waited_for_again() -> None:
    device = Simulated(nbytes_per_s=4e5)
    event = device.stream().load(torch.empty(10_000), device.own(torch.zeros(10_000)))
    time.sleep(0.1)
    started = time.monotonic()
    event.wait()
    assert time.monotonic() - started < 0.05


def test_a_prompt_device_copies_at_once_and_lets_the_host_wait() -> None:
    device = Simulated(prompt=True)
    device.pace(4e5, None)
    tensor, host = on(device, *[0] * 20_000), torch.arange(20_000.0)
    stream, began = device.stream(), time.monotonic()
    stream.follow()
    event = stream.store(tensor, host)
    assert torch.equal(tensor, host), "kernels need no Kernels"
    assert time.monotonic() - began < 0.2
    event.order()
    assert time.monotonic() - began >= 0.2
    back, began = torch.zeros(20_000), time.monotonic()
    stream.load(back, tensor).wait()
    assert torch.equal(back, host)
    assert time.monotonic() - began < 0.2, "the way back has a pace of its own"


def test_copies_follow_one_another_on_the_link() -> None:
    device = Simulated(nbytes_per_s=4e6, prompt=True)
    tensors = [on(device, *[0] * 5000) for _ in range(6)]
    streams, began = [device.stream(), device.stream()], time.monotonic()
    events = [streams[number % 2].store(tensor, torch.zeros(5000)) for number, tensor in enumerate(tensors)]
    for number, event in enumerate(events, 1):
        assert event._place.until - began >= 0.005 * number  # type: ignore[attr-defined]
    assert events[-1]._place.until - began < 0.03 + 0.02, "each copy takes its time once"  # type: ignore[attr-defined]
