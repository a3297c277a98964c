from __future__ import annotations

import math

import pytest

from gradwire.timing.interval import Ratio, half_width


def test_half_of_an_interval_is_students() -> None:
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.30 / 3**0.5)
    assert half_width([1.0, 1.0]) == 0
    assert half_width([1.0]) == math.inf
    assert half_width([0.0, 1.0] * 50) < half_width([0.0, 1.0] * 5)


def test_a_ratio_and_its_inverse_say_the_same() -> None:
    numbers = [1.1, 1.3, 1.25, 1.4]
    found, inverse = Ratio.of(numbers), Ratio.of(1 / each for each in numbers)
    assert found.mean == pytest.approx(math.prod(numbers) ** 0.25)
    assert found.least < found.mean < found.most
    assert (1 / inverse.most, 1 / inverse.mean, 1 / inverse.least) == pytest.approx(
        (found.least, found.mean, found.most)
    )


def test_one_number_has_no_interval() -> None:
    found = Ratio.of([2.0])
    assert (found.least, found.most) == (0.0, math.inf)
    assert found.mean == pytest.approx(2.0)
    assert Ratio.of([2.0]).is_tie


@pytest.mark.parametrize(
    ("ratio", "is_tie"),
    [(Ratio(1.2, 1.1, 1.3), False), (Ratio(0.9, 0.8, 0.99), False), (Ratio(1, 1, 1), True)],
)
def test_an_interval_around_1_is_a_tie(ratio: Ratio, is_tie: bool) -> None:
    assert ratio.is_tie is is_tie
