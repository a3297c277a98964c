"""The lanes of one model's buckets: links to the same ranks, with a communication thread for each.

Bucket i of a step uses lane i modulo the number of lanes, on all ranks. So n lanes exchange n buckets at
once, and a small bucket doesn't wait for the latency of the preceding bucket. Every lane orders its own
frames, so that the exchange of a bucket is the same as with one lane.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gradwire.errors import AttachError, ExchangeError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.context import SyncContext
from gradwire.sync.group import AFTER_AGREEING, connect
from gradwire.sync.messages import gather
from gradwire.sync.thread import CallWork, CommunicationThread, Work

ExchangeNow = Callable[[str, Callable[[Exchange], list[list[float]]]], list[list[float]]]
"""The type of ``BetweenSteps.exchange_now`` for calls that return a row of numbers of every rank."""


class Lanes:
    """The links and threads of one model's buckets on one rank.

    Lane 0 is the link of ``context``, which all work except buckets uses, too. The other lanes are connected
    when a plan first needs them. A failure of one lane ends all lanes.
    """

    def __init__(self, context: SyncContext) -> None:
        self._contexts = [context]
        self._threads: dict[int, CommunicationThread] = {}

    def extend(self, number: int, exchange_now: ExchangeNow) -> str:
        """Connect up to this number of lanes before a plan needs them; return why that failed, or ``""``.

        All ranks call this while no exchange is running. After each lane, they compare results with
        ``exchange_now``, so that either all ranks return a reason, or none does. After a failure, all ranks
        close the new lanes, and keep their plan. Raises ``ExchangeError`` if they can't compare results.
        """
        first, before = self._contexts[0], len(self._contexts)
        why, wait_s = "", 2 * first.timeout_s  # peers may still be waiting for this rank's connection
        for lane in range(before, number):
            try:
                self._connect(first.plan, number)
            except (AttachError, ExchangeError) as error:
                why = str(error)
            row = [float(bool(why))]
            rows = exchange_now("the lanes", partial(gather, row=row, timeout_s=wait_s))
            failed = [rank for rank, row in enumerate(rows) if row[0]]
            if failed:
                for context in self._contexts[before:]:
                    context.exchange.close()
                del self._contexts[before:]
                first.siblings = first.siblings if before > 1 else []
                return why or f"rank {failed[0]} could not connect lane {lane}"
        return ""

    def follow(self, plan: Plan) -> None:
        """Switch all lanes to a plan, and connect the lanes that it needs.

        All ranks call this while no exchange is running. Raises ``AttachError``, and ``ExchangeError`` for a
        link without a process group, which has only one lane.
        """
        try:
            while len(self._contexts) < plan.lanes:
                self._connect(plan, plan.lanes)
        except BaseException:
            for context in self._contexts[1:]:
                context.exchange.close()
            raise
        for context in self._contexts:
            context.exchange.follow(plan)

    def of(self, index: int) -> SyncContext:
        """Return the context of the lane for the bucket with this index in its step."""
        first, number = self._contexts[0], index % self._contexts[0].plan.lanes
        chosen = self._contexts[number]
        chosen.steps_before, chosen.steps_done = first.steps_before, first.steps_done
        return chosen

    def put(self, work: Work) -> None:
        """Queue a piece of work on the communication thread of its lane."""
        number = next(number for number, each in enumerate(self._contexts) if each is work.context)
        self._thread(number).put(work)

    def end(self) -> None:
        """Close the links and end the threads after their queued work; return at once."""
        for number, context in enumerate(self._contexts):
            thread = self._threads.get(number)
            if context.owns_link and thread is None:
                context.exchange.close()
            if thread is not None:
                if context.owns_link:
                    thread.put(CallWork(context, "the link", lambda exchange: exchange.close(), None))
                thread.end()

    def close(self, count: int) -> None:
        """Close the links and join the threads, which may still average ``count`` floats.

        May be called twice. Raises ``LinkTimeoutError`` if a thread does not end.
        """
        self.end()
        for thread in self._threads.values():
            thread.close(count)

    def _thread(self, number: int) -> CommunicationThread:
        if number not in self._threads:
            self._threads[number] = CommunicationThread(self._contexts[number], number)
        return self._threads[number]

    def _connect(self, plan: Plan, number: int) -> None:
        first = self._contexts[0]
        if first.group is None:
            raise ExchangeError(
                f"rank {first.rank}: expected a plan with lanes=1 for a link without a process group, got "
                f"lanes={number}; use lanes=1"
            )
        ending, lane = f"; {AFTER_AGREEING}", len(self._contexts)
        link = connect(first.group, first.timeout_s, AttachError, ending, tos=plan.tos, lane=lane)
        context = SyncContext(
            Exchange(link, plan),
            first.options,
            first.ledger,
            first.group,
            first.model,
            first.remedy,
            first.late_advice,
            fails_late=first.fails_late,
            ranks=range(link.world),
        )
        self._contexts.append(context)
        first.ranks = first.ranks or range(link.world)
        for each in self._contexts:
            each.siblings = self._contexts
