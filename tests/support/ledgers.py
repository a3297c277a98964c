"""What several tests put into a ledger, and sinks that only remember."""

from __future__ import annotations

from gradwire.exchange import Accounting
from gradwire.training.ledger.ledger import StepCounts

SMALL = Accounting(400, 100, 2, encode_s=0.25, decode_s=0.5, wait_s=1.0, total_s=2.0)
LARGE = Accounting(4000, 2000, 4, encode_s=1.0, decode_s=2.0, wait_s=4.0, total_s=8.0)


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
