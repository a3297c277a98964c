"""What several tests put into a ledger, and sinks that only remember."""

from __future__ import annotations

from gradwire.costs import ExchangeCost
from gradwire.sync.ledger.sinks import StepCounts

SMALL = ExchangeCost(
    raw_nbytes=400, wire_nbytes=100, encode_s=0.25, decode_s=0.5, handling_s=0.25, wait_s=1.0
)
LARGE = ExchangeCost(
    raw_nbytes=4000, wire_nbytes=2000, encode_s=1.0, decode_s=2.0, handling_s=1.0, wait_s=4.0
)


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self.steps: list[StepCounts] = []
        self.closed = 0

    def write(self, step: StepCounts) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.closed += 1


class Broken(Kept):
    """A sink that fails from its second step on."""

    def write(self, step: StepCounts) -> None:
        super().write(step)
        if len(self.steps) > 1:
            raise OSError("the disk is on fire")

    def __repr__(self) -> str:
        return "Broken"
