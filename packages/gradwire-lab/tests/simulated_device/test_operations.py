from __future__ import annotations

import torch

from gradwire_lab.simulated_device.operations import Copy, Operation, Write, extent


def test_the_extent_is_that_of_all_elements() -> None:
    tensor = torch.zeros(4, 6)
    start = tensor.data_ptr()
    assert extent(tensor) == (start, start + 96)
    assert extent(tensor[1:3, ::2]) == (start + 24, start + 24 + 4 * (6 + 4 + 1))
    assert extent(tensor[:0]) == (0, 0)


def test_operations_touch_what_overlaps() -> None:
    assert Operation((0, 4), (8, 12)).touches((3, 5))
    assert not Operation((0, 4), (8, 12)).touches((4, 8))


def test_a_write_is_poison_until_it_is_done() -> None:
    tensor = torch.tensor([1.0, 2.0, 3.0])
    write = Write(extent(tensor), tensor)
    parts = write.outside(extent(tensor[1:2]))
    write.poison()
    assert bool(tensor.isnan().all())
    tensor[0], tensor[2] = 1, 3
    for part in parts:
        part.take()
    tensor.zero_()
    for part in parts:
        part.run()
    assert tensor.tolist() == [1, 0, 3], "the parts leave out what lies between them"
    write.run()
    assert tensor.tolist() == [1, 2, 3]


def test_a_copy_spoils_what_it_races_with() -> None:
    device, host = torch.zeros(2, 2), torch.arange(4.0)
    copy = Copy(device, host, up=True)
    copy.run()
    assert device.tolist() == [[0, 1], [2, 3]]
    copy.races = True
    copy.run()
    assert bool(device.isnan().all())
    gaps = torch.zeros(2, 4)
    Copy(gaps[:, ::2], host, up=True).spoil()
    assert gaps.isnan().tolist() == [[True, False, True, False]] * 2
