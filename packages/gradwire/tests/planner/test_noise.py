from __future__ import annotations

import math

import pytest
import torch

from gradwire.planner.loss import added_noise, encoded_terms, noise_scale

DIMENSIONS = 20_000


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("ratio", [0.25, 4.0])
def test_the_scale_is_that_of_the_noise(ratio: float) -> None:
    direction = normal(0, DIMENSIONS)
    gradients = [direction + math.sqrt(ratio) * normal(seed, DIMENSIONS) for seed in range(1, 9)]
    assert noise_scale(gradients) == pytest.approx(ratio, rel=0.1)


def test_without_noise_it_is_zero_and_without_a_direction_infinite() -> None:
    one, other = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 2.0])
    assert noise_scale([one] * 3) == pytest.approx(0.0, abs=1e-6)
    assert noise_scale([one, other]) == math.inf
    assert noise_scale([one]) == noise_scale([]) == math.inf
    assert noise_scale([one, -one]) == math.inf


@pytest.mark.parametrize(
    ("algorithm", "world", "terms"),
    [
        ("ring", 4, {1: 1, 2: 1, 3: 1, 4: 1}),
        ("star", 4, {1: 3, 4: 1}),
        ("tree", 4, {1: 2, 2: 1, 4: 1}),
        ("butterfly", 4, {1: 2, 2: 1, 4: 1}),
        ("pairwise", 4, {1: 3, 4: 1}),
        ("hierarchical:2", 4, {1: 2, 2: 1, 4: 1}),
        ("ring", 1, {1: 1}),
    ],
)
def test_every_encoding_is_counted(algorithm: str, world: int, terms: dict[int, float]) -> None:
    assert encoded_terms(algorithm, world) == terms


@pytest.mark.parametrize("algorithm", ["ring", "pairwise", "star", "tree", "butterfly"])
@pytest.mark.parametrize("world", [3, 8])
def test_an_all_reduce_encodes_an_element_once_for_each_rank(algorithm: str, world: int) -> None:
    assert sum(encoded_terms(algorithm, world).values()) == pytest.approx(world)


@pytest.mark.parametrize("noise", [0.3, 20.0])
def test_the_added_noise_is_what_a_ring_of_noisy_encodings_adds(noise: float) -> None:
    """The oracle passes a sum around a ring, every hop of which adds noise of a tenth of its norm."""
    world, lost = 4, 0.1
    direction = normal(0, DIMENSIONS)
    total, exact = torch.zeros(DIMENSIONS, dtype=torch.float64), torch.zeros(DIMENSIONS, dtype=torch.float64)
    for rank in range(world):
        own = direction + math.sqrt(noise) * normal(10 + rank, DIMENSIONS)
        total, exact = total + own, exact + own
        error = normal(50 + rank, DIMENSIONS)
        total += lost * total.norm() * error / error.norm()
    added = float((total - exact).square().sum()) / world**2
    own_noise = DIMENSIONS * (1 + noise / world)
    expected = added_noise("ring", world, noise, lambda _: lost)
    assert expected == pytest.approx(added / own_noise, rel=0.05)


def test_in_pure_noise_it_is_the_square_of_the_loss_times_the_hops() -> None:
    assert added_noise("ring", 6, math.inf, lambda _: 0.1) == pytest.approx(0.01 * 7 / 2)
    assert added_noise("ring", 6, 1e12, lambda _: 0.1) == pytest.approx(0.01 * 7 / 2)
    assert added_noise("ring", 6, 1.0, lambda _: 0.1, exact=True) == 0.0
