from __future__ import annotations

import threading
from itertools import permutations

import torch
from torch import nn

from gradwire.offload.sums import GradientSums

TERMS = [torch.tensor([each]) for each in (1e8, 1.0, -1e8, 3.0)]  # whose sum depends on the order


def in_order(*terms: torch.Tensor) -> float:
    total = terms[0].clone()
    for each in terms[1:]:
        total += each
    return total.item()


def master() -> nn.Parameter:
    return nn.Parameter(torch.zeros(1))


def add(sums: GradientSums, own: nn.Parameter, device: int) -> None:
    sums.add([(device, own, TERMS[device].clone())], {device})


def grad(own: nn.Parameter) -> float:
    assert own.grad is not None
    return own.grad.item()


def test_whichever_device_is_first_the_sum_is_in_their_order() -> None:
    expected = in_order(*TERMS)
    assert len({in_order(*(TERMS[each] for each in order)) for order in permutations(range(4))}) > 1
    for order in permutations(range(4)):
        own, sums = master(), GradientSums(4)
        for device in order:
            add(sums, own, device)
        assert grad(own) == expected, order
        for device in order:  # behind what is there
            add(sums, own, device)
        assert grad(own) == in_order(torch.tensor([expected]), *TERMS), order


def test_at_any_time_all_that_has_come_is_there() -> None:
    for order in permutations(range(4)):
        own, sums = master(), GradientSums(4)
        for number, device in enumerate(order, 1):
            add(sums, own, device)
            assert grad(own) == in_order(*(TERMS[each] for each in sorted(order[:number])))


def test_a_second_pass_of_a_device_comes_behind_those_that_are_there() -> None:
    own, sums = master(), GradientSums(4)
    for device in (3, 3, 0):
        add(sums, own, device)
    assert grad(own) == in_order(TERMS[3], TERMS[0], TERMS[3])
    own, sums = master(), GradientSums(2)
    for device in (0, 0, 1, 1):
        add(sums, own, device)
    assert grad(own) == in_order(TERMS[0], TERMS[0], TERMS[1], TERMS[1])


def test_a_step_or_gradients_that_were_zeroed_or_clipped_begin_anew() -> None:
    own, sums = master(), GradientSums(3)
    add(sums, own, 2)
    own.grad = None
    sums.settle()
    add(sums, own, 1)
    add(sums, own, 0)
    assert grad(own) == in_order(TERMS[0], TERMS[1])
    own.grad = None  # a step that was skipped
    add(sums, own, 2)
    add(sums, own, 0)
    assert grad(own) == in_order(TERMS[0], TERMS[2])
    own, sums = master(), GradientSums(3)
    add(sums, own, 2)
    assert own.grad is not None
    own.grad.mul_(0.5)
    add(sums, own, 0)
    assert grad(own) == in_order(0.5 * TERMS[2], TERMS[0])


def test_a_pass_of_all_devices_is_added_in_their_order_at_once() -> None:
    own, sums = master(), GradientSums(4)
    sums.add([(device, own, TERMS[device].clone()) for device in (3, 0, 2, 1)], range(4))
    assert grad(own) == in_order(*TERMS)


def test_masters_that_a_pass_does_not_reach_keep_their_order() -> None:
    owns, sums = [master(), master()], GradientSums(3)
    add(sums, owns[0], 2)
    add(sums, owns[1], 1)
    add(sums, owns[1], 0)
    assert grad(owns[0]) == TERMS[2].item()
    assert grad(owns[1]) == in_order(TERMS[0], TERMS[1])


def test_threads_add_without_loss() -> None:
    own, sums = nn.Parameter(torch.zeros(1000)), GradientSums(4)

    def work(device: int) -> None:
        for _ in range(50):
            sums.add([(device, own, torch.ones(1000))], {device})

    threads = [threading.Thread(target=work, args=(device,)) for device in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert own.grad is not None
    assert set(own.grad.tolist()) == {200.0}
