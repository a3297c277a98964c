"""Who talks to whom in sharded training: one line per group of processes and purpose.

FSDP gives shard ``r`` to member ``r`` of a group. A ring's reduce half leaves chunk ``c`` with another rank,
``collectives.ring.owner``. So the members of a sharding group sit in the ring in an order in which the owner
of chunk ``c`` is member ``c``, and no byte is moved to set it right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist

from gradwire.api import connect
from gradwire.collectives import ring
from gradwire.costs import ExchangeCost
from gradwire.devices import Staging
from gradwire.errors import AttachError, ExchangeError, GradwireError, LinkError
from gradwire.exchange import Exchange
from gradwire.exchange.frames import Difference
from gradwire.plan import Plan
from gradwire.sync.agreement import AFTER_AGREEING
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import Layout
from gradwire.sync.ledger.meter import LostMeter, Measure


class Purpose(Enum):
    """What a line is for; each has its own, so that an all-gather never meets a reduce-scatter."""

    GATHER = "all-gather of the weights"
    SCATTER = "reduce-scatter of the gradients"
    REPLICATE = "all-reduce of the gradients between replicas"
    CHOOSE = "choice of a plan"


@dataclass(frozen=True)
class Line:
    """An exchange among the members of one group.

    ``ranks`` are the world's ranks in the order of the link's, and ``place`` is this rank's in the group.
    ``staging`` serves one tensor at a time, as the exchange does.
    """

    exchange: Exchange
    ranks: Sequence[int]
    place: int
    staging: Staging = field(default_factory=Staging)

    @property
    def world(self) -> int:
        """How many members the group has."""
        return len(self.ranks)


class Lines:
    """All lines of one rank. All ranks ask for the same lines in the same order.

    After an error all of them are closed, not only the one that failed: peers that wait in other groups learn
    of it at once.

    Parameters
    ----------
    plans
        The plan for each purpose.
    timeout_s
        How long any single wait for a peer lasts.

    Attributes
    ----------
    step
        The training step that exchanges are part of, or that was the last one.
    steps_before
        How many steps the run had taken before, by the checkpoint that was loaded.
    """

    def __init__(self, plans: dict[Purpose, Plan], timeout_s: float) -> None:
        self._plans = plans
        self._timeout_s = timeout_s
        self._lines: dict[tuple[Purpose, dist.ProcessGroup], Line] = {}
        self.step = self.steps_before = 0

    def connect(self, purpose: Purpose, group: dist.ProcessGroup) -> Line:
        """Return the line of a group; the first call connects with the others.

        Raises ``AttachError`` when they do not come, and ``ExchangeError`` once the lines are closed.
        """
        if (purpose, group) not in self._lines:
            self._lines[purpose, group] = self._new_line(purpose, group)
        line = self._lines[purpose, group]
        if line.exchange.failure is not None:
            raise ExchangeError(
                f"rank {dist.get_rank()} cannot start the {purpose.value}: {line.exchange.failure}; save the "
                "shards, and begin again on all ranks"
            )
        return line

    @contextmanager
    def using(self, purpose: Purpose, group: dist.ProcessGroup, what: str) -> Iterator[Line]:
        """Lend the line of a group; an error in it closes all lines."""
        line = self.connect(purpose, group)
        line.exchange.link.step = self.step
        try:
            yield line
        except BaseException as error:
            found = self._difference(line, error)
            self.close(f"the {purpose.value} ({what}) failed: {found or str(error) or type(error).__name__}")
            if found:
                raise ExchangeError(f"in the {purpose.value} ({what}), {found}") from error
            if isinstance(error, GradwireError):
                error.add_note(f"in the {purpose.value} ({what})")
            raise

    def _difference(self, failed: Line, error: BaseException) -> str:
        """Return which ranks are at different steps, if an exchange failed for that, and let all peers know.

        A rank that waits in one group for a peer has its frames, and its last one, in another group.
        """
        if not isinstance(error, ExchangeError):
            return ""
        for line in (failed, *self._lines.values()):
            link, transport = line.exchange.link, line.exchange.transport
            link.step = self.step
            if transport.note_difference(LinkError()) and transport.difference is not None:
                self._tell(line.ranks, transport.difference)
                told = line is failed and not transport.difference.has_left
                return "" if told else transport.difference.in_words(link)
        return ""

    def _tell(self, ranks: Sequence[int], found: Difference) -> None:
        one, other = ((ranks[rank], step) for rank, step in found.places)
        for line in self._lines.values():
            if {one[0], other[0]} <= set(line.ranks):
                places = ((line.ranks.index(one[0]), one[1]), (line.ranks.index(other[0]), other[1]))
                line.exchange.transport.difference = Difference(places, found.has_left)

    def follow(self, plan: Plan) -> None:
        """Let gradients go by another plan from now on; all ranks call this between the same two steps."""
        for purpose in (Purpose.SCATTER, Purpose.REPLICATE):
            self._plans[purpose] = plan
        for (purpose, _), line in self._lines.items():
            line.exchange.follow(self._plans[purpose])

    def close(self, reason: str = "what attach_fsdp returned is closed") -> None:
        """Close all lines; later calls raise, with this reason. May be called twice."""
        for line in self._lines.values():
            line.exchange.close(reason)

    def _new_line(self, purpose: Purpose, group: dist.ProcessGroup) -> Line:
        members = dist.get_process_group_ranks(group)
        ranks = in_ring(members) if purpose in (Purpose.GATHER, Purpose.SCATTER) else members
        ending = f", for the {purpose.value}; {AFTER_AGREEING}"
        plan = self._plans[purpose]
        link = connect(group, self._timeout_s, AttachError, ending, ranks, plan.tos)
        return Line(Exchange(link, plan), ranks, members.index(dist.get_rank()))


def in_ring(members: Sequence[int]) -> list[int]:
    """Return the members of a group in the order in which the ring's owner of chunk ``c`` is member ``c``."""
    world = len(members)
    chunk_of = {ring.owner(chunk, world): chunk for chunk in range(world)}
    return [members[chunk_of[rank]] for rank in range(world)]


# What encoding loses of sharded gradients: where parameters lie in what is reduced, and when a step ends.

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
