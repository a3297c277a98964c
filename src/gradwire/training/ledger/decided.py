"""A plan that a run has chosen itself, as the ledger keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from gradwire.auto.choice.decision import Decision
from gradwire.fields import line, of, real
from gradwire.plan import Plan
from gradwire.training.ledger.counts import SOURCE


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision: before which step, the sentence that tells of it, the plan as JSON, and expected seconds.

    ``step_s`` is for a step with the plan, ``uncompressed_s`` for one without compression.
    """

    step: int
    reason: str
    plan: str
    step_s: float
    uncompressed_s: float

    @classmethod
    def of(cls, step: int, decision: Decision) -> Self:
        """Return what is kept of a decision before ``step``."""
        reason = f"from step {step} on, {decision.reason}"
        return cls(step, reason, decision.plan.to_json(), decision.step_s, decision.uncompressed_s)

    def values(self) -> dict[str, Any]:
        """Return it for a line of JSON, with the plan as an object."""
        return asdict(self) | {"plan": json.loads(self.plan)}

    @classmethod
    def of_state(cls, row: object) -> Self:
        """Read what ``asdict`` returned. Raises ``StateError``."""
        return SOURCE.read(row, of(cls, plan=_plan, step_s=_SECONDS, uncompressed_s=_SECONDS))


_SECONDS = real(0.0, finite=False)


def _plan(text: object) -> str:
    Plan.from_json(line(text))
    return line(text)
