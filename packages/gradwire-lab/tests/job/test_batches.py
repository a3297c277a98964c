import pytest
import torch

from gradwire_lab.job.batches import learning_rate, lengths, share, shuffle


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(28, 14, [14, 14]), (30, 14, [14, 14, 2]), (3, 14, [3])]
)
def test_blocks_make_up_the_steps(steps: int, every: int, expected: list[int]) -> None:
    assert lengths(steps, every) == expected


def test_shuffles_are_permutations_that_change_with_epoch_and_seed() -> None:
    first = shuffle(100, seed=3, epoch=1)
    assert first.sort().values.tolist() == list(range(100))
    assert torch.equal(first, shuffle(100, seed=3, epoch=1))
    assert not torch.equal(first, shuffle(100, seed=3, epoch=2))
    assert not torch.equal(first, shuffle(100, seed=4, epoch=1))


def test_the_largest_seed_works() -> None:
    assert len(shuffle(10, seed=(1 << 63) - 1, epoch=9)) == 10


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_workers_share_a_batch_and_leave_nothing(workers: int) -> None:
    order = shuffle(100, seed=0, epoch=1)
    parts = [share(order, 2, 20, rank, workers) for rank in range(workers)]
    assert torch.equal(torch.cat(parts), order[40:60])
    assert {len(part) for part in parts} == {20 // workers}


def test_the_rate_rises_to_its_peak_and_falls_to_nothing() -> None:
    rates = [learning_rate(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.01 * step for step in range(1, 11)])
    assert rates[10] == 0.1
    assert rates[55] == pytest.approx(0.05)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 1e-4


def test_a_constant_rate_rises_and_stays() -> None:
    rates = [learning_rate(step, 100, 0.1, "constant") for step in range(100)]
    assert rates[:10] == pytest.approx([0.01 * step for step in range(1, 11)])
    assert set(rates[10:]) == {0.1}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_runs_have_a_rate(steps: int) -> None:
    assert learning_rate(0, steps, 0.1) == 0.1
