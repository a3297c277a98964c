"""What encoding loses of sharded gradients: where parameters lie in what is reduced, and when a step ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist

from gradwire.costs import ExchangeCost
from gradwire.plan import Plan
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.ledger.lost_meter import LostMeter, Measure
from gradwire.training.ledger.shares import Layout

_AMONG_REPLICAS = " among replicas"


@dataclass(frozen=True)
class UnitLayouts:
    """The layouts of what one FSDP module communicates; its parameters are one group.

    FSDP scatters, for every rank, that rank's shard of every parameter, padded to the same length; what is
    reduced among replicas is one rank's shards. It leaves parameters without a gradient out, and does not say
    which: then all that is left is measured as one.
    """

    unit: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Those of one rank's shards, with what pads them."""

    @property
    def counts(self) -> tuple[int, ...]:
        """How many floats each shard has."""
        return tuple(map(math.prod, self.shapes))

    def scattered(self, count: int, world: int) -> Layout:
        """Return the layout of ``count`` floats that are scattered over ``world`` ranks."""
        return _layout_of(self, count, world, "")

    def replicated(self, count: int) -> Layout:
        """Return the layout of ``count`` floats that are reduced among replicas."""
        return _layout_of(self, count, 1, _AMONG_REPLICAS)

    def all_names(self) -> list[str]:
        """Return whatever any of the layouts may name."""
        every = [*self.names, self._rest]
        return [*every, *(name + _AMONG_REPLICAS for name in every)]

    @property
    def _rest(self) -> str:
        return f"{self.unit} (some of its parameters)"

    def _layout(self, count: int, copies: int, ending: str) -> Layout:
        if sum(self.counts) * copies != count:
            return Layout((self._rest + ending,), (count,), (self.unit,))
        names = tuple(name + ending for name in self.names)
        return Layout(names, self.counts, (self.unit,) * len(names), copies)


_layout_of = lru_cache(maxsize=1024)(UnitLayouts._layout)  # every backward pass has the same ones


class FsdpMeter(LostMeter):
    """Measures what is lost of all modules; a step ends with the backward pass that reduces gradients.

    Parameters
    ----------
    plan, ledger
        See ``LostMeter``.
    layouts
        Those of all modules, in an order that all ranks share.
    all_reduce
        Sums a few floats over all ranks, exactly; where ranks are to be strict.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        layouts: Sequence[UnitLayouts],
        all_reduce: Callable[[torch.Tensor], ExchangeCost] | None = None,
    ) -> None:
        names = [name for each in layouts for name in each.all_names()]
        super().__init__(dist.get_rank(), plan, names, ledger, strict=all_reduce is not None)
        self.steps_done = 0
        self._all_reduce = all_reduce
        self._backward = -1

    def measure(self, layout: Layout) -> Measure:
        """Return what measures an exchange in the step under way, where that is measured."""
        return Measure(layout if self.measures(self.steps_done + 1) else None)

    def begins(self, then: Callable[[], object]) -> bool:
        """Return whether the gradient at hand is the first that this backward pass reduces.

        The step ends with the pass: then this calls ``then``.
        """
        current = torch._C._current_graph_task_id()
        if current in (-1, self._backward):
            return False
        self._backward = current
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(partial(self._end, then))
        return True

    def _end(self, then: Callable[[], object]) -> None:
        verdict = Measure()
        if self._all_reduce is not None and self.agrees(self.steps_done + 1):
            accounting, verdict.verdict = self.agree_by(
                self._all_reduce, dist.get_rank(), dist.get_world_size()
            )
            self.count("verdicts", accounting, accounting.total_s, 0, verdict)
        self.steps_done += 1
        then()
        self.end_step()
