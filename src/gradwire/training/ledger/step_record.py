"""What one step cost: its wall time in three parts, and its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from gradwire.costs import ExchangeCost


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The cost of one step, or of the sum of several.

    The three times add up to the wall time of the computing thread. While it waits for an exchange it cannot
    see what the exchange does just then, so a wait of ``w`` seconds is divided in the proportion in which the
    whole exchange spent its time: ``codec_s`` gets ``w * (encode_s + decode_s) / total_s`` and ``exposed_s``
    the rest. For a synchronous step ``w`` is the whole exchange; for a pipelined one only what compute did
    not hide.

    Bytes are those of the exchanges that this step waited for. A pipelined step waits for an earlier step's
    gradient, so the sum over all steps is complete once ``drain()`` is added.

    Attributes
    ----------
    loss
        Mean loss over ``steps``; NaN where none was computed (a server, a drain).
    compute_s
        Seconds of forward, backward, update and copies.
    codec_s
        Seconds of waiting while chunks were encoded and decoded.
    exposed_s
        Seconds of waiting for the network and the peers.
    cost
        Seconds and bytes of the exchanges, hidden or not; ``cost.total_s`` is ``wait_s`` of a synchronous
        step.
    steps
        How many steps this is the sum of.
    correction_s
        Seconds of ``compute_s`` that an eager pipeline spent on its own, virtual updates.
    """

    loss: float = math.nan
    compute_s: float = 0.0
    codec_s: float = 0.0
    exposed_s: float = 0.0
    cost: ExchangeCost = field(default_factory=ExchangeCost)
    steps: int = 0
    correction_s: float = 0.0

    @classmethod
    def of_wait(cls, wait_s: float, cost: ExchangeCost) -> StepRecord:
        """Return the record of ``wait_s`` seconds spent waiting for one exchange."""
        codec_share = cost.codec_s / max(cost.total_s, 1e-9)
        codec_s = wait_s * min(codec_share, 1.0)
        return cls(codec_s=codec_s, exposed_s=wait_s - codec_s, cost=cost)

    @property
    def wait_s(self) -> float:
        """Seconds for which the computing thread stood still."""
        return self.codec_s + self.exposed_s

    @property
    def step_s(self) -> float:
        """Wall time of the computing thread in seconds."""
        return self.compute_s + self.wait_s

    def within(
        self, wall_s: float, *, loss: float = math.nan, steps: int = 1, correction_s: float = 0.0
    ) -> StepRecord:
        """Return these waits as part of ``steps`` steps of ``wall_s`` seconds; the rest was compute."""
        compute_s = max(wall_s - self.wait_s, 0.0)
        return replace(self, loss=loss, steps=steps, compute_s=compute_s, correction_s=correction_s)

    def __add__(self, other: StepRecord) -> StepRecord:
        steps = self.steps + other.steps
        losses = [(record.loss, record.steps) for record in (self, other) if record.steps]
        return StepRecord(
            loss=sum(loss * count for loss, count in losses) / steps if steps else math.nan,
            compute_s=self.compute_s + other.compute_s,
            codec_s=self.codec_s + other.codec_s,
            exposed_s=self.exposed_s + other.exposed_s,
            cost=self.cost + other.cost,
            steps=steps,
            correction_s=self.correction_s + other.correction_s,
        )
