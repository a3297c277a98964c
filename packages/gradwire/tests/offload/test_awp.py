"""AWP against an evaluation of algorithm 1 of its own, in plain Python, batch by batch."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradwire.errors import SpecError, StateError
from gradwire.offload.awp import AWP, calibrate_threshold

NORMS = st.floats(0, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0, math.inf, math.nan])
WORDS = st.sampled_from([8, 16, 24, 32])


def algorithm_1(
    norms: list[list[float]], threshold: float, interval: int, step: int, start: int, cap: int
) -> list[list[int]]:
    """Return the bits after each batch but the first, whose norms are those of W_(-1)."""
    bits, counters, found = [start] * len(norms[0]), [0] * len(norms[0]), []
    for batch in range(1, len(norms)):
        for layer in range(len(bits)):
            now, before = norms[batch][layer], norms[batch - 1][layer]
            try:
                delta = (now - before) / before
            except ZeroDivisionError:
                delta = math.inf
            if delta < threshold:
                counters[layer] += 1
            if counters[layer] == interval:
                bits[layer] += step
                counters[layer] = 0
        found.append([min(each, cap) for each in bits])
    return found


@given(st.data(), st.floats(-1, 1), st.integers(1, 4), WORDS, WORDS)
def test_bits_are_those_of_algorithm_1_batch_by_batch(
    data: st.DataObject, threshold: float, interval: int, step: int, start: int
) -> None:
    layers = data.draw(st.integers(1, 3))
    norms = data.draw(st.lists(st.lists(NORMS, min_size=layers, max_size=layers), min_size=2, max_size=30))
    cap = data.draw(st.sampled_from([each for each in (8, 16, 24, 32) if each >= start]))
    policy = AWP(threshold=threshold, interval=interval, step_bits=step, start_bits=start, max_bits=cap)
    assert policy.bits_for(0, norms[0][0]) is None, "changes start from the first norms"
    assert policy.observe(norms[0]) == [start] * layers
    found = []
    for row in norms[1:]:
        known = [policy.bits_for(layer, norm) for layer, norm in enumerate(row)]
        found.append(policy.observe(row))
        assert known == found[-1], "a layer's bits are known before the norms of the others"
    assert policy.bits_for(layers, 1.0) is None
    assert found == algorithm_1(norms, threshold, interval, step, start, cap)


def test_bits_on_norms_recorded_from_a_training_are_those_of_algorithm_1() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.05)
    x, y = torch.randn(64, 6), torch.randint(3, (64,))
    norms: list[list[float]] = []
    for _ in range(60):
        norms.append([float(each.detach().norm()) for each in model.parameters() if each.dim() > 1])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    threshold = calibrate_threshold(norms)
    policy = AWP(threshold=threshold, interval=7)
    found = [policy.observe(row) for row in norms][1:]
    assert found == algorithm_1(norms, threshold, 7, 8, 8, 32)
    assert len({tuple(row) for row in found}) > 2, "the precision adapts"


@given(st.lists(st.lists(NORMS, min_size=2, max_size=2), min_size=2, max_size=20), st.integers(0, 19))
def test_a_resumed_policy_goes_on_with_the_same_bits(norms: list[list[float]], at: int) -> None:
    whole, first, second = (AWP(threshold=0.01, interval=2) for _ in range(3))
    expected = [whole.observe(row) for row in norms]
    found = [first.observe(row) for row in norms[:at]]
    second.load_state_dict(first.state_dict())
    assert found + [second.observe(row) for row in norms[at:]] == expected


def test_the_threshold_is_the_mean_change_until_the_error_drops() -> None:
    norms = [[10.0, 1.0], [9.0, 1.1], [8.1, 1.21], [0.1, 99.0]]
    changes = [(now - old) / old for a, b in pairwise(norms[:3]) for old, now in zip(a, b, strict=True)]
    assert calibrate_threshold(norms, [0.9, 0.9, 0.7, 0.8]) == pytest.approx(sum(changes) / len(changes))
    assert calibrate_threshold(norms) > 10
    assert calibrate_threshold(norms, [0.9] * 4) == calibrate_threshold(norms)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": math.nan}, "expected a finite number or 'auto' for the threshold, got nan"),
        ({"threshold": "1"}, "expected a finite number or 'auto' for the threshold, got '1'"),
        ({"interval": 0}, "expected a whole number of at least 1 batch for interval, got 0"),
        ({"step_bits": 4}, "expected 8, 16, 24 or 32 for step_bits, got 4"),
        ({"start_bits": 8.0}, "expected 8, 16, 24 or 32 for start_bits, got 8.0"),
        ({"watched": 3}, "expected threshold='auto' with watched"),
        (
            {"threshold": "auto", "watched": 0},
            "expected a whole number of at least 1 batch for watched, got 0",
        ),
        ({"start_bits": 24, "max_bits": 16}, "expected start_bits of at most max_bits .16., got 24"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        AWP(**({"threshold": 0.0, "interval": 1} | options))  # type: ignore[arg-type]


ROWS = st.lists(st.lists(NORMS, min_size=2, max_size=2), min_size=2, max_size=24)


@pytest.mark.filterwarnings("ignore:AWP")
@given(ROWS, st.integers(1, 3), st.integers(1, 6))
def test_auto_watches_in_32_bits_and_then_is_the_policy_with_the_mean_change(
    norms: list[list[float]], interval: int, watched: int
) -> None:
    policy = AWP(threshold="auto", interval=interval, watched=watched)
    found = []
    for row in norms:
        known = [policy.bits_for(layer, norm) for layer, norm in enumerate(row)]
        found.append(policy.observe(row))
        assert all(each in (None, bits) for each, bits in zip(known, found[-1], strict=True))
    if policy.threshold is None:
        assert found == [[32, 32]] * len(norms)
        return
    last = found.index([8, 8])
    assert last >= watched
    assert policy.threshold == pytest.approx(calibrate_threshold(norms[: last + 1]))
    assert found[:last] == [[32, 32]] * last
    given_threshold = AWP(threshold=policy.threshold, interval=interval)
    assert found[last:] == [given_threshold.observe(row) for row in norms[last:]]


@pytest.mark.filterwarnings("ignore:AWP")
@given(ROWS, st.integers(0, 23))
def test_a_resumed_auto_goes_on_with_the_same_bits(norms: list[list[float]], at: int) -> None:
    whole, first, second = (AWP(threshold="auto", interval=2, watched=4) for _ in range(3))
    expected = [whole.observe(row) for row in norms]
    found = [first.observe(row) for row in norms[:at]]
    second.load_state_dict(first.state_dict())
    assert found + [second.observe(row) for row in norms[at:]] == expected
    assert second.state_dict() == whole.state_dict()
    with pytest.raises(StateError, match=r"expected .* for auto in the state of an AWP"):
        second.load_state_dict(AWP(threshold=0.0, interval=2).state_dict())


def test_two_intervals_are_watched_unless_it_is_said() -> None:
    policy = AWP(threshold="auto", interval=3, start_bits=16, max_bits=16)
    assert policy.allowed([8]) == [32]
    assert [policy.observe([norm]) for norm in range(1, 9)] == [[32]] * 6 + [[16]] * 2


def test_a_threshold_above_nearly_all_changes_is_warned_of_once() -> None:
    growing = [2.0**number for number in range(5)]  # T is 1, and then nothing changes
    policy = AWP(threshold="auto", interval=3, watched=4)
    for norm in [*growing, 16.0, 16.0]:
        policy.observe([norm])
    with pytest.warns(UserWarning, match=r"AWP: expected most changes of the norms to be above"):
        policy.observe([16.0])
    policy.observe([16.0])  # which would be an error if it warned, as in all tests
    steady = AWP(threshold="auto", interval=3, watched=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(20):
            steady.observe([2.0 + number % 2])


def test_norms_of_other_layers_are_refused() -> None:
    policy = AWP(threshold=0.0, interval=1)
    policy.observe([1.0, 2.0])
    with pytest.raises(SpecError, match="expected 2 norms, got"):
        policy.observe([1.0])
    with pytest.raises(SpecError, match="expected 1 validation errors, got 0"):
        calibrate_threshold([[1.0]], [])
    with pytest.raises(SpecError, match="expected norms of at least two batches with finite changes, got"):
        calibrate_threshold([[1.0]])
    with pytest.raises(SpecError, match="expected a norm of each layer in every batch, got"):
        calibrate_threshold([[1.0, 2.0], [1.0]])


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"bits": None}, {"bits": [8, 8, 8]}, {"counts": ["1", 2]}, {"norms": []}],
)
def test_a_state_that_isnt_one_is_refused_and_changes_nothing(change: dict[str, object]) -> None:
    policy = AWP(threshold=0.0, interval=1)
    policy.observe([1.0, 2.0])
    before = policy.state_dict()
    with pytest.raises(StateError, match="in the state of an AWP, got"):
        policy.load_state_dict(before | change)
    assert policy.state_dict() == before


def test_a_resumed_policy_keeps_to_its_own_bounds() -> None:
    free = AWP(threshold=1.0, interval=1)
    for _ in range(4):
        free.observe([1.0, 1.0])
    assert free.bits == [32, 32]
    low, high = AWP(threshold=1.0, interval=1, max_bits=16), AWP(threshold=1.0, interval=1, start_bits=24)
    low.load_state_dict(free.state_dict())
    high.load_state_dict({**free.state_dict(), "bits": [8, 32]})
    assert (low.bits, high.bits) == ([16, 16], [24, 32])


def test_a_count_of_a_longer_interval_gains_bits_in_the_next_batch() -> None:
    long, short = AWP(threshold=1.0, interval=9), AWP(threshold=1.0, interval=3)
    for _ in range(6):
        long.observe([1.0])
    short.load_state_dict(long.state_dict())
    assert [short.observe([1.0]) for _ in range(4)] == [[16], [16], [16], [24]]
