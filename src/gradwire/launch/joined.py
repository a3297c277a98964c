"""Take part, as one rank, in what ``torchrun`` or another launcher has started."""

from __future__ import annotations

from collections.abc import Callable

from torch._C._distributed_c10d import Store

from gradwire.errors import ExchangeError, JobError, LinkError
from gradwire.launch.launched import launched_rank
from gradwire.launch.rendezvous import check_same_options, join_launched
from gradwire.launch.seat import Event, Options, Seat, Task


def run_joined(task: Task[Options, Event], show: Callable[[Event], None]) -> None:
    """Do this rank's part of a task; ``show`` gets its own events. Raises ``JobError``."""
    rank, world = launched_rank()

    def meet() -> Store:
        store = join_launched(task.timeout_s)
        check_same_options(store, rank, task.shared)
        return store

    seat: Seat[Event] = Seat(rank, world, show, meet)
    try:
        task.work(seat, task.options)
    except (LinkError, ExchangeError) as error:
        raise JobError(f"rank {rank} failed ({seat.doing}): {error}") from error
