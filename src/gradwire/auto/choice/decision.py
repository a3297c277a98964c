"""What was decided, and which of two decisions is the better one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from gradwire.codecs import parse
from gradwire.fields import Source, of, real, rows
from gradwire.plan import Plan

_SOURCE = Source("a decision", "leave it out, and the run measures anew")
STAY = 0.05
"""Another plan has to be better than the present one by more than this share, in time or in bytes."""
SAME = 0.05
"""Of plans whose times differ by less, the one whose time and bytes have the smallest product is the best:
times are no more certain, and bytes are sure."""
_LESS_NOISE = 0.9
"""Of those that are as lean, too, one whose noise has less than this share of the best one's variance is
better: what partial sums lose adds up in a ring, and less pairwise."""
_LEAST_SAVED = 0.001
"""And only if that saves at least this share of the steps."""


@dataclass(frozen=True)
class Decision:
    """What was decided.

    Attributes
    ----------
    plan
        What all ranks use from now on.
    step_s, uncompressed_s, compute_s
        Seconds of a step that are expected with it, with the fastest plan without compression, and of
        computation alone. Those of plans that were tried are what steps took.
    reason
        The sentence that tells users of it.
    extra
        The share of extra steps that its noise may cost.
    nbytes
        What the rank that sends most sends in a step.
    left_out
        The other codecs that would have lost too much of more than a tenth of the values.
    """

    plan: Plan
    step_s: float
    uncompressed_s: float
    compute_s: float
    reason: str
    extra: float = 0.0
    nbytes: float = 0.0
    left_out: tuple[str, ...] = ()

    @property
    def to_loss_s(self) -> float:
        """Seconds that bring training as far as one exact step does."""
        return self.step_s * (1 + self.extra)

    @property
    def in_short(self) -> str:
        """The codec, whether some parameters have others, and the algorithm."""
        others = " and others" if self.plan.codecs else ""
        return f"{self.plan.codec}{others} over {self.plan.algorithm}"

    def to_json(self) -> str:
        """Return it as a JSON object."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps(values | {"plan": json.loads(self.plan.to_json())})

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """Read what ``to_json`` wrote; ``left_out`` may be missing. Raises ``SpecError``."""
        return _SOURCE.of_json(text, cls.from_values)

    @classmethod
    def from_values(cls, values: object) -> Decision:
        """Read the object that ``to_json`` wrote; ``left_out`` may be missing. Raises ``SpecError``."""
        kinds = {"plan": Plan.from_values, "left_out": rows(lambda spec: str(parse(spec)))}
        seconds = dict.fromkeys(("step_s", "uncompressed_s", "compute_s"), real(0.0, finite=False))
        return _SOURCE.read(values, of(cls, **kinds, **seconds))


def same_way(plan: Plan, present: Plan) -> bool:
    """Return whether two plans exchange a bucket in the same way, apart from exceptions."""
    ways = [(each.codec, each.algorithm, each.segment_nbytes) for each in (plan, present)]
    return ways[0] == ways[1]


def stays(present: Decision, best: Decision, same: float = STAY) -> bool:
    """Return whether the plan in use is as good as the best one: as fast, within ``same``, and as lean."""
    is_as_fast = present.to_loss_s <= (1 + same) * best.to_loss_s
    return is_as_fast and present.nbytes <= (1 + STAY) * best.nbytes


def best_of(decisions: Iterable[Decision], same: float = SAME) -> Decision:
    """Return the fastest to a loss, or of those that are as fast one that saves more bytes than time.

    If others are as fast and as lean as that, and add less noise, the best of those.
    """
    every = list(decisions)
    least_s = min(each.to_loss_s for each in every)
    as_fast = [each for each in every if each.to_loss_s <= (1 + same) * least_s]
    best = _leanest(as_fast)
    most = min(_LESS_NOISE * best.extra, best.extra - _LEAST_SAVED)
    as_lean = (each for each in as_fast if each.nbytes <= (1 + STAY) * best.nbytes)
    less_noise = [each for each in as_lean if each.extra <= most]
    return _leanest(less_noise) if less_noise else best


def _leanest(decisions: Sequence[Decision]) -> Decision:
    return min(decisions, key=lambda it: it.to_loss_s * it.nbytes)
