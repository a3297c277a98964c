"""The workload that determines the time of a step: sizes of gradients, seconds of computation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, bucket_members

PIECE_COUNT, MOST_PIECES = 1 << 18, 1024
"""A model of which only the size is known counts as parameters of 1 MiB each, or as 1024 larger ones."""


LOCAL_UPDATES = 2.5
"""The local update of an eager pipeline, in optimizer steps: one such step, and copies of the rank's own
gradient, the weights, and the optimizer's state. ``bench/local_update.py`` measures it."""
MOST_COUNT = 10**15
"""No model has more parameters, so a larger number is a typing error."""


@dataclass(frozen=True)
class Part:
    """One bucket: its floats, and when backward has it ready, in seconds from the start of backward."""

    count: int
    ready_s: float


@dataclass(frozen=True)
class Workload:
    """One training step of one host, without the exchange.

    Parameters
    ----------
    counts
        The floats of each parameter, in the order of the model.
    forward_s, backward_s, update_s
        Seconds of computation in a step; backward takes time in proportion to the sizes of the gradients,
        the last parameter first.

    Raises
    ------
    SpecError
        If the model has no parameters, or a time is invalid.
    """

    counts: tuple[int, ...]
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0

    def __post_init__(self) -> None:
        counts = tuple(self.counts)
        object.__setattr__(self, "counts", counts)
        if not counts or not all(type(count) is int and count >= 0 for count in counts) or not sum(counts):
            raise SpecError(
                "a plan is for a model with at least one parameter, whose sizes are whole numbers, but these "
                f"are {counts[:4]!r}"
            )
        for name in ("forward_s", "backward_s", "update_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise SpecError(f"{name} must be a number of seconds from 0 up, but is {value!r}")

    @classmethod
    def of_count(
        cls, count: int, forward_s: float = 0.0, backward_s: float = 0.0, update_s: float = 0.0
    ) -> Workload:
        """Return the workload of a model of which only the number of parameters is known."""
        if type(count) is not int or count < 1:
            raise SpecError(f"a model has a whole number of parameters from 1 up, but this one has {count!r}")
        if count > MOST_COUNT:
            raise SpecError(f"a model has at most {MOST_COUNT} parameters, but this one has {count:.3g}")
        piece = max(PIECE_COUNT, -(-count // MOST_PIECES))
        pieces, rest = divmod(count, piece)
        counts = (piece,) * pieces + ((rest,) if rest else ())
        return cls(counts, forward_s, backward_s, update_s)

    @property
    def count(self) -> int:
        """The floats of the whole gradient."""
        return sum(self.counts)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole gradient."""
        return FLOAT_NBYTES * self.count

    @property
    def compute_s(self) -> float:
        """Seconds of a step without any exchange."""
        return self.forward_s + self.backward_s + self.update_s

    def compute_with_s(self, pipeline: int, shards: int = 1) -> float:
        """Return the same for a pipeline of this many steps, including the local update if it is eager.

        ``shards`` is the number of ranks that the update is divided among.
        """
        replays = pipeline - 2  # of own gradients, beyond the first
        update_s = self.update_s * (1 + LOCAL_UPDATES + replays if pipeline > 1 else 1 / shards)
        return self.forward_s + self.backward_s + update_s

    def parts(self, bucket_nbytes: int | None) -> list[Part]:
        """Return the buckets in the order of their exchange, as training cuts them."""
        sizes = [
            sum(self.counts[members.start : members.stop])
            for members in bucket_members(self.counts, bucket_nbytes)
        ]
        done = accumulate(sizes)
        return [
            Part(size, self.backward_s * so_far / self.count)
            for size, so_far in zip(sizes, done, strict=True)
        ]
