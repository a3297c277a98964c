from __future__ import annotations

import math

import pytest

from gradwire_lab.experiments.loss_prediction import extra


def falling(count: int, slower: float = 1.0) -> list[float]:
    """Return a loss that falls, and takes so many times as many evaluations."""
    return [math.exp(-place / slower / 20) for place in range(count)]


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.25, 1.5])
def test_the_share_is_how_much_later_a_loss_is_reached(slower: float) -> None:
    assert extra(falling(60), falling(40, slower)) == pytest.approx(slower - 1, abs=0.03)


def test_the_last_part_counts_and_noise_averages_out() -> None:
    late = [1.0] * 10 + falling(40)[10:]
    assert extra(falling(60), late) == pytest.approx(0.0, abs=0.01)
    noisy = [loss * (1.02 if place % 2 else 0.98) for place, loss in enumerate(falling(40, 1.25))]
    assert extra(falling(60), noisy) == pytest.approx(0.25, abs=0.03)


def test_a_loss_that_the_other_never_had_is_where_it_ends() -> None:
    exact = falling(20)
    last = [place / 20 for place in range(13, 21)]  # two fifths of the evaluations
    assert extra(exact, [0.5 * exact[-1]] * 20) == pytest.approx(sum(last) / len(last) - 1)
