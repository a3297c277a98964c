"""What a run that chooses its plan adds to the states of residuals, which go through ``redivide``."""

from __future__ import annotations

from gradwire import Plan
from gradwire.sync.bucket.residual import Residuals, redivide

PLAN = Plan(residual=True)


def test_choices_stay_with_their_rank_and_not_with_another_number_of_ranks() -> None:
    states = [Residuals(PLAN, rank, 2).state_dict() | {"auto": f"choices of {rank}"} for rank in range(2)]
    assert [state["auto"] for state in redivide(states[::-1], 2)] == ["choices of 0", "choices of 1"]
    assert all("auto" not in state for state in redivide(states, 3))


def test_residuals_load_what_has_choices_beside_them() -> None:
    own = Residuals(PLAN, 0, 1)
    own.of("a", 3)
    own.load_state_dict(own.state_dict() | {"auto": "text"})
    assert own.state_dict().keys() == {"rank", "world", "residuals"}
