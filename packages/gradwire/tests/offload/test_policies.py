from __future__ import annotations

import pytest

from gradwire.errors import SpecError, StateError
from gradwire.offload.awp import AWP
from gradwire.offload.policies import Delta, Oracle, Policy, Static, policy_of


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_a_static_policy_has_one_format(bits: int) -> None:
    assert Static(bits).observe([1.0, 2.0, 3.0]) == [bits] * 3
    assert policy_of(f"static:{bits}").observe([0.0]) == [bits]


@pytest.mark.parametrize(
    ("runs", "bits"),
    [
        ({8: [(1.0, 0.3)], 16: [(2.0, 0.3)]}, 8),
        ({8: [(1.0, 0.1), (5.0, 0.3)], 16: [(2.0, 0.3)], 32: [(4.0, 0.9)]}, 16),
        ({8: [(1.0, 0.1)], 24: [(9.0, 0.2)]}, 24),
    ],
)
def test_the_oracle_takes_the_first_to_reach_the_accuracy(
    runs: dict[int, list[tuple[float, float]]], bits: int
) -> None:
    assert Oracle(runs, accuracy=0.25).observe([1.0]) == [bits]


def test_specs() -> None:
    policy = AWP(threshold=0.0, interval=1)
    assert policy_of(policy) is policy
    assert policy_of("delta").observe([1.0]) == policy_of("delta:bf16").observe([1.0]) == [16]
    assert policy_of("delta:fp32").observe([1.0, 1.0]) == [32, 32]


@pytest.mark.parametrize("spec", ["", "static", "static:12", "static:٨", "delta:fp16", "awp", None, 8])
def test_an_unknown_policy_is_one_sentence(spec: object) -> None:
    with pytest.raises(SpecError, match=r"^expected a policy such as 'static:8'.* or a policy object, got "):
        policy_of(spec)  # type: ignore[arg-type]


def test_mistakes() -> None:
    for bits in (12, 8.0):  # a saved state holds whole numbers
        with pytest.raises(SpecError, match=f"expected a static format of 8, 16, 24 or 32 bits, got {bits}"):
            Static(bits)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="expected 'bf16' or 'fp32' for the dtype of a delta, got 'fp16'"):
        Delta("fp16")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="expected a whole number of at least 1 for checked_every, got 0"):
        Delta(checked_every=0)
    with pytest.raises(SpecError, match="oracle: expected at least one pair"):
        Oracle({8: []}, 0.5)


def test_a_policy_without_state_takes_none() -> None:
    policy: Policy = Static(8)
    policy.load_state_dict(policy.state_dict())
    with pytest.raises(
        StateError,
        match=r"expected no fields for the state of the policy Static, got the unknown field 'bits'",
    ):
        policy.load_state_dict({"bits": [8]})


def test_the_bits_of_a_static_policy_are_its_own_whatever_was_saved() -> None:
    assert Static(32).allowed([8, 16]) == [32, 32]
    assert Delta("bf16").allowed([32, 8]) == [16, 16]
