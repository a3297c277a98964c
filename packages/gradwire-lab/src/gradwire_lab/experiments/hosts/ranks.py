"""One rank of an experiment on a testbed: the rank connects, measures, times plans, and reports rows."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gradwire.codecs import Codec, parse
from gradwire.exchange import Exchange
from gradwire.launch.launched import launched_rank
from gradwire.launch.rendezvous import in_words, join_launched, joined_group
from gradwire.links import Link, ProcessGroupLink
from gradwire.log import VARIABLE
from gradwire.machine import cores, stolen_s
from gradwire.plan import Plan
from gradwire.timing.calibrate import codec_cost, end_cost, rest_between_segments
from gradwire.timing.environment import Environment
from gradwire.timing.line import Line, both_ends, fit
from gradwire.timing.line_rate import QUICK, measure
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts import MARK

TIMEOUT_S = 300.0
"""The longest wait for another rank; ranks may be measuring codecs or searching for a plan."""
SETTLE_S = 0.02
"""The pause between two exchanges, in which a rate limiter regains its burst, as between training steps."""
AGREEMENTS = 3
"""The number of agreements before the first timed run, to measure the time of an agreement."""
MOST_STOLEN = 0.02
"""The largest share of the cores' time that a hypervisor may take during a timed exchange."""


@contextmanager
def met_ranks() -> Iterator[Ranks]:
    """Connect the ranks of all hosts, and disconnect them together. Each rank computes on one thread.

    Raises ``GradwireError``.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("GRADWIRE_THREADS", "1")
    os.environ.setdefault(VARIABLE, "quiet")
    rank, world = launched_rank()
    with joined_group(join_launched(TIMEOUT_S), rank, world, TIMEOUT_S) as group:
        link = ProcessGroupLink(group, timeout_s=TIMEOUT_S)
        try:
            yield Ranks(rank, world, link)
            with in_words(f"rank {rank} waited for the other ranks", TIMEOUT_S):
                dist.barrier()  # so that no rank sees a closed connection
        finally:
            link.close()


class TimedExchanges(NamedTuple):
    """The times of repeated exchanges.

    ``seconds`` has the times from the common start to the last rank's end, without disturbed repetitions.
    ``seconds`` is the same on all ranks. ``processor_s`` is this rank's CPU time of every repetition,
    including disturbed repetitions.
    """

    seconds: list[float]
    processor_s: list[float]


class Ranks:
    """A process as one of the hosts' ranks, created by ``met_ranks``."""

    def __init__(self, rank: int, world: int, link: Link) -> None:
        self.rank, self.world, self.link = rank, world, link
        self._agreement_s: float | None = None

    def line(self, longest_nbytes: int | None = None) -> Line:
        """Measure the link of ranks 0 and 1, up to ``longest_nbytes`` a message; return it on all ranks."""
        sizes = [each for each in QUICK.sizes if longest_nbytes is None or each <= longest_nbytes]
        effort = replace(QUICK, sizes=tuple(sizes))
        points = measure(self.link, 1 - self.rank, effort) if self.rank < 2 else ()
        found: Line = self.gather(fit(points) if points else None)[0]
        return found

    def environment(
        self,
        codecs: Sequence[str | Codec],
        segment_nbytes: int = 1 << 20,
        samples: list[torch.Tensor] | None = None,
    ) -> Environment | None:
        """Return the costs of link, hosts, and codecs (on ``samples`` or synthetic gradients) on rank 0."""
        line = self.line()
        ends = self.gather(end_cost(self.link, dist.barrier))
        table = {}
        if self.rank < cores():  # as in an exchange, one rank per core uses the memory
            if samples is None:
                samples = [gradient(1 << 20, seed) for seed in range(4)]
            rest_s = rest_between_segments(line, segment_nbytes)
            chosen = [parse(each) if isinstance(each, str) else each for each in codecs]
            table = {
                str(codec): codec_cost(codec, samples, self.world, segment_nbytes, rest_s) for codec in chosen
            }
        dist.barrier()
        if self.rank > 0:
            return None
        return Environment(line, table, both_ends(ends[1], ends[0], cores(), self.world))

    @contextmanager
    def first(self, count: int) -> Iterator[Link | None]:
        """Yield a link between the first ``count`` ranks, or None on others. All ranks must call this."""
        if count == self.world:
            yield self.link
            return
        group = dist.new_group([*range(count)], timeout=timedelta(seconds=TIMEOUT_S))
        if self.rank >= count:
            yield None
            return
        with self.linked(group) as link:
            yield link

    @contextmanager
    def linked(self, group: dist.ProcessGroup | None = None, tos: int = 0) -> Iterator[Link]:
        """Yield a new link, with IP's ``tos``, between a group's members. All members must call this."""
        members: Any = dist.group.WORLD if group is None else group
        link = ProcessGroupLink(members, timeout_s=self.link.timeout_s, tos=tos)
        try:
            yield link
            dist.barrier(members)  # so that no rank sees a closed connection
        finally:
            link.close()

    def time_s(self, plan: Plan, count: int, budget_s: float, least: int = 5, most: int = 15) -> list[float]:
        """Return the seconds of a plan's all-reduces, as measured by ``repeat_s``."""
        return self.timed(Exchange(self.link, plan).all_reduce, count, budget_s, least, most).seconds

    def timed(
        self,
        exchange: Callable[[torch.Tensor], object],
        count: int,
        budget_s: float,
        least: int,
        most: int,
        first_count: int = 1 << 20,
    ) -> TimedExchanges:
        """Time exchanges of a gradient of ``count`` values as ``repeat_s`` does. All ranks call this.

        An untimed exchange of the first ``first_count`` values precedes the timed exchanges.
        """
        source, processor_s = self.gradient(count), list[float]()
        exchange(source[:first_count].clone())  # untimed: allocates the buffers
        bucket = torch.empty_like(source)

        def run() -> None:
            began = time.process_time()
            exchange(bucket)
            processor_s.append(time.process_time() - began)

        seconds = self.repeat_s(run, lambda: bucket.copy_(source), budget_s=budget_s, least=least, most=most)
        return TimedExchanges(seconds, processor_s)

    def repeat_s(
        self,
        run: Callable[[], object],
        prepare: Callable[[], object] = lambda: None,
        *,
        budget_s: float,
        least: int,
        most: int,
    ) -> list[float]:
        """Return the seconds of each run until its last rank has finished, identical on all ranks.

        Runs during which a hypervisor stole the cores are discarded. If fewer than ``least`` are left after
        four times the budget, the least disturbed runs are returned. ``prepare`` isn't timed.
        """
        found: list[tuple[float, float]] = []
        calm, started = 0, time.monotonic()
        while calm < most:
            prepare()
            begun, stolen = self._meet(), stolen_s()
            run()
            spent_s = time.monotonic() - begun
            figures = [spent_s, (stolen_s() - stolen) / spent_s / cores(), time.monotonic() - started]
            latest = torch.tensor(figures, dtype=torch.float64)
            dist.all_reduce(latest, dist.ReduceOp.MAX)
            found.append((float(latest[1]), float(latest[0])))
            calm += found[-1][0] <= MOST_STOLEN
            if float(latest[2]) > (budget_s if calm >= least else 4 * budget_s) and len(found) >= least:
                break
        return undisturbed(found, least)

    def ratio(self, plan: Plan, count: int) -> float:
        """Return the compression ratio of an all-reduce on the wire. All ranks call this."""
        return Exchange(self.link, plan).all_reduce(self.gradient(count)).ratio

    def _meet(self) -> float:
        """Wait until a time on which all ranks have agreed, and return this time.

        All ranks share a clock, whereas a barrier ends milliseconds apart on different ranks. The time is
        later by the pause plus the time of an agreement; between distant hosts, this time exceeds the pause.
        """
        if self._agreement_s is None:
            dist.barrier()
            durations = [self._agree(time.monotonic())[1] for _ in range(AGREEMENTS)]
            self._agreement_s, _ = self._agree(min(durations))
        moment, _ = self._agree(time.monotonic() + SETTLE_S + self._agreement_s)
        time.sleep(max(0.0, moment - time.monotonic()))
        return moment

    def _agree(self, value: float) -> tuple[float, float]:
        """Return the largest value of all ranks, and the seconds of this agreement."""
        began = time.monotonic()
        found = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found[0]), time.monotonic() - began

    def gradient(self, count: int) -> torch.Tensor:
        """Return a synthetic gradient that differs between ranks."""
        return gradient(count, 100 + self.rank)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of ranks."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def report(self, cell: Cell, figures: Cell) -> None:
        """Send the row of a cell from rank 0 to the program that started the hosts."""
        if self.rank == 0:
            sys.stdout.buffer.write(MARK + json.dumps({**cell, **figures}).encode() + b"\n")
            sys.stdout.buffer.flush()


def undisturbed(timed: Sequence[tuple[float, float]], least: int, enough: int | None = None) -> list[float]:
    """Return the seconds of the repetitions during which a hypervisor stole little CPU time.

    ``timed`` has stolen shares and seconds. If fewer than ``enough`` (by default ``least``) are undisturbed,
    return the ``least`` repetitions with the smallest shares.
    """
    calm = [seconds for share, seconds in timed if share <= MOST_STOLEN]
    if len(calm) >= (least if enough is None else enough):
        return calm
    return [seconds for _, seconds in sorted(timed)[:least]]


def gradient(count: int, seed: int) -> torch.Tensor:
    """Return synthetic gradient values: Laplace of scale 1e-3, independent between seeds."""
    torch.manual_seed(seed)
    return torch.distributions.Laplace(0.0, 1e-3).sample((count,))
