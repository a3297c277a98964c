"""Take part, as one rank, in what ``torchrun`` or another launcher has started."""

from __future__ import annotations

from collections.abc import Callable

from torch._C._distributed_c10d import Store

from gradwire.errors import ExchangeError, JobError, LinkError
from gradwire.launch.context import Event, Options, RankContext, Task
from gradwire.launch.launched import launched_rank
from gradwire.launch.rendezvous import check_same_options, join_launched


def run_joined(task: Task[Options, Event], show: Callable[[Event], None]) -> None:
    """Do this rank's part of a task; ``show`` gets its own events. Raises ``JobError``."""
    rank, world = launched_rank()

    def join_store() -> Store:
        store = join_launched(task.timeout_s)
        check_same_options(store, rank, task.shared)
        return store

    context: RankContext[Event] = RankContext(rank, world, show, join_store)
    try:
        task.work(context, task.options)
    except (LinkError, ExchangeError) as error:
        raise JobError(f"rank {rank} failed ({context.doing}): {error}") from error
