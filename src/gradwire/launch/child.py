"""A process that was started here, as one rank: it works, reports through its pipe and never outlives us."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread

from gradwire.launch.context import Event, Failed, Finished, Options, RankContext, describe_failure
from gradwire.launch.rendezvous import join_store


def main(
    work: Callable[[RankContext[Event], Options], None],
    options: Options,
    rank: int,
    world: int,
    port: int,
    timeout_s: float,
    connection: Connection[Event | Finished | Failed, None],
) -> None:
    """Be a rank: everything it has to say goes through ``connection``."""
    Thread(target=_end_with_parent, name="gradwire lifeline", daemon=True).start()
    context: RankContext[Event] = RankContext(
        rank, world, connection.send, lambda: join_store(port, timeout_s)
    )
    try:
        work(context, options)
        connection.send(Finished(rank))
    except BaseException as error:
        connection.send(describe_failure(context, error))
        connection.close()
        os._exit(1)  # not sys.exit: a thread that waits for a peer must not keep the process


def _end_with_parent() -> None:
    """Leave at once when the parent is gone, however it went: nobody is left to report to."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
