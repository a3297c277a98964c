"""What trainings share: the parts of a step, flat gradients, threads, and images that are read once."""

from __future__ import annotations

import torch

from gradwire_lab.experiments.hosts.training import (
    accuracy,
    dataset,
    flat,
    one_thread,
    part_of_step,
    parts_of,
)


def test_workers_share_each_step_and_an_epoch_has_every_image_once() -> None:
    steps = [[part_of_step(20, 3, step, 8, worker, 2) for worker in (0, 1)] for step in range(4)]
    for epoch in (steps[:2], steps[2:]):
        drawn = torch.cat([part for step in epoch for part in step])
        assert len(drawn) == len({*drawn.tolist()}) == 16, "four are left over in each epoch"
    assert not torch.equal(steps[0][0], steps[2][0]), "each epoch has an order of its own"
    assert torch.equal(part_of_step(20, 3, 0, 8, 0, 2), steps[0][0])
    assert not torch.equal(part_of_step(20, 4, 0, 8, 0, 2), steps[0][0])


def test_parts_are_views_in_the_shapes_of_what_was_flattened() -> None:
    tensors = [torch.arange(6.0).view(2, 3).T, torch.tensor(7.0)]
    values = flat(tensors)
    assert values.tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 7.0]
    out = torch.empty(7)
    assert flat(tensors, out=out) is out
    parts = parts_of(values, tensors)
    assert all(torch.equal(one, other) for one, other in zip(parts, tensors, strict=True))
    parts[1].zero_()
    assert values[6] == 0.0


def test_one_thread_ends_with_its_block() -> None:
    before = torch.get_num_threads()
    with one_thread(1):
        drawn = torch.rand(1)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with one_thread(1):
        assert torch.equal(torch.rand(1), drawn)


def test_random_numbers_go_on_after_one_thread() -> None:
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    with one_thread():
        torch.rand(3)
    assert torch.equal(torch.rand(1), expected)


def test_images_are_read_once_and_an_accuracy_is_a_share_of_the_test_images() -> None:
    images = dataset("digits")
    assert dataset("digits") is images

    class Always(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full((len(x),), 3), 10).float()

    assert accuracy(Always(), images) == int((images.test_labels == 3).sum()) / len(images.test_labels)
