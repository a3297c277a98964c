"""A comparison of step times with and without gradwire, in alternating blocks of steps.

In one training run, DDP itself, PyTorch's bf16 hook, and gradwire average the gradients in turn, for a block
of steps each. One block of every method is a cycle. The blocks of a cycle are adjacent in time, so a change
of the machine's speed affects all methods alike. Each cycle gives one ratio of step times. The gain is the
geometric mean of the cycles' ratios, with a 95 % interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

from gradwire.tables import Column, Table, figure
from gradwire.timing.interval import Ratio

PLAIN, BF16, ATTACHED = "plain", "bf16 hook", "attached"
METHODS = (PLAIN, BF16, ATTACHED)
"""The methods that can average gradients: torch's own all-reduce, DDP's bf16 hook, and gradwire."""
BLOCK_STEPS = 4
"""The number of counted steps in a block: few, so that the blocks of a cycle are close in time."""
SKIPPED_STEPS = 1
"""The number of uncounted steps at the beginning of a block, because the block before used another method."""
LEAST_CYCLES = 3
"""The minimum number of cycles, because fewer cycles give no useful interval."""
NOISY_SHARE = 0.3
"""The largest width of a tie's interval (its ends' ratio minus 1); a wider one around 1 is noise."""


class Turns:
    """The order of a comparison's blocks, and the times of the blocks' steps.

    The order is the same on all ranks, because it depends only on the number of steps. Every second cycle
    reverses the order of ``methods``, so that a steady change of the machine's speed cancels out.
    """

    def __init__(self, methods: Sequence[str], cycles: int) -> None:
        orders = [*methods], [*reversed(methods)]
        self._order = [method for number in range(cycles) for method in orders[number % 2]]
        self._methods = methods
        self._blocks: list[list[tuple[Any, Any]]] = [[]]

    @property
    def is_over(self) -> bool:
        """Whether all blocks are complete."""
        return len(self._blocks) > len(self._order)

    @property
    def method(self) -> str:
        """The method that averages the next step's gradients."""
        return ATTACHED if self.is_over else self._order[len(self._blocks) - 1]

    def passed(self, began: Any, ended: Any) -> None:
        """Record the marks of the beginning and end of a step that the current method averaged."""
        if not self.is_over:
            self._blocks[-1].append((began, ended))
            if len(self._blocks[-1]) == SKIPPED_STEPS + BLOCK_STEPS:
                self._blocks.append([])

    def cycles(self, seconds: Callable[[Any], float]) -> dict[str, tuple[float, ...]]:
        """Return the median step time in each complete cycle, for each method; ``seconds`` reads a mark."""
        complete = (len(self._blocks) - 1) // len(self._methods)
        found: dict[str, list[float]] = {method: [] for method in self._methods}
        for method, block in zip(self._order[: complete * len(self._methods)], self._blocks, strict=False):
            steps = block[SKIPPED_STEPS:]
            found[method].append(median(seconds(ended) - seconds(began) for began, ended in steps))
        return {method: tuple(each) for method, each in found.items()}


_COLUMNS = (
    Column.of_text("averaged by"),
    Column("cycles"),
    Column("step", "ms"),
    Column("interval", "ms"),
    Column("gradwire's gain"),
)
_IN_WORDS = MappingProxyType({PLAIN: "PyTorch's own all-reduce", BF16: "its bf16 hook"})


@dataclass(frozen=True)
class Compared:
    """The result of comparing step times with and without gradwire, for the report."""

    cycles_s: Mapping[str, tuple[float, ...]]  # for each method, the median step time in each cycle
    wanted: int  # the number of cycles of the complete comparison
    plan: str  # of the attached steps, in words

    @property
    def cycles(self) -> int:
        """The number of complete cycles."""
        return min(map(len, self.cycles_s.values()), default=0)

    @property
    def is_short(self) -> bool:
        """Whether there are too few cycles for an interval."""
        return self.cycles < LEAST_CYCLES

    def ratio(self, method: str) -> Ratio:
        """Return the ratio of a step time with ``method`` to a step time with gradwire."""
        pairs = zip(self.cycles_s[method], self.cycles_s[ATTACHED], strict=True)
        return Ratio.of(other_s / own_s for other_s, own_s in pairs)

    def verdict(self) -> str:
        """Return the result of the comparison in a sentence."""
        if self.is_short:
            return (
                f"Too short to compare: the script ended after {self.cycles} of {self.wanted} cycles of the "
                f"comparison, and a confidence interval needs {LEAST_CYCLES}; run more steps."
            )
        methods = [method for method in (PLAIN, BF16) if method in self.cycles_s]
        first, *others = (_against(method, self.ratio(method)) for method in methods)
        return f"With gradwire, a step was {', and '.join([first, *others])}."

    def table(self) -> Table:
        """Return the table of step times and gains, with a row for each method."""
        rows = [self._row(method, times_s) for method, times_s in self.cycles_s.items() if times_s]
        return Table(_COLUMNS, rows)

    def _row(self, method: str, times_s: Sequence[float]) -> tuple[str, ...]:
        step = Ratio.of(1e3 * each for each in times_s)
        interval = "-" if len(times_s) < 2 else f"{figure(step.least)} to {figure(step.most)}"
        gain = "" if method == ATTACHED or self.is_short else _in_words(self.ratio(method))
        name = f"gradwire, {self.plan}" if method == ATTACHED else {PLAIN: "plain"}.get(method, method)
        return name, str(len(times_s)), figure(step.mean), interval, gain


LEGEND = (
    f"A cycle has {BLOCK_STEPS} counted steps of each method, in turn. Step: the mean of the cycles' "
    "medians on rank 0, with its 95 % interval. Gain: the mean of the cycles' ratios; a tie if its "
    "interval includes 1."
)
ON_LOSS = (
    "The loss was not compared, because all methods took turns in one training run. To compare the loss, "
    "run the script to its end, with and without gradwire."
)


def _is_noisy(ratio: Ratio) -> bool:
    """Return whether a ratio's interval includes 1 and is too wide for a tie."""
    return ratio.is_tie and ratio.most > (1 + NOISY_SHARE) * ratio.least


def _in_words(ratio: Ratio) -> str:
    words = ratio.in_words()
    return f"noisy: {words.removeprefix('tie: ')}" if _is_noisy(ratio) else words


def _against(method: str, ratio: Ratio) -> str:
    of, speed = _IN_WORDS[method], f"{ratio.mean:.2f} times as fast"
    ends = f"({ratio.least:.2f} to {ratio.most:.2f})"
    if ratio.least > 1:
        return f"{speed} as with {of} {ends}"
    if ratio.most < 1:
        return f"slower than with {of}: {speed} {ends}"
    if _is_noisy(ratio):
        return f"too noisy to compare with {of}: {speed} {ends}"
    return f"as fast as with {of}, a tie: {speed} {ends}"
