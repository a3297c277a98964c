"""What one process does: meet the others, perform the runs one after the other, report."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread

import torch
from torch._C._distributed_c10d import Store

from gradwire.errors import ExchangeError, GradwireError, LinkError
from gradwire.job.data import Dataset, load
from gradwire.job.events import Event, Failed, Finished, Progress
from gradwire.job.options import JobOptions
from gradwire.job.team import Team
from gradwire.job.training_run import Job, Place, perform
from gradwire.launch.rendezvous import join_store
from gradwire.machine import cores


def perform_all(
    options: JobOptions,
    dataset: Dataset,
    store: Store,
    rank: int,
    place: Place,
    tell: Callable[[Progress], None],
) -> None:
    """Perform every run of the job as ``rank``. Raises ``GradwireError``."""
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", options.workers))
    torch.set_num_threads(max(1, cores() // neighbours))
    team = Team(store, rank, options)
    try:
        job = Job(options, dataset, team, place, tell)
        for run in options.runs:
            perform(run, job)
    finally:
        team.close()


def main(options: JobOptions, rank: int, port: int, connection: Connection[Event, None]) -> None:
    """Be a local worker process: everything it has to say goes through ``connection``."""
    Thread(target=_end_with_parent, name="gradwire lifeline", daemon=True).start()
    place = Place()
    try:
        dataset = load(options.data, options.data_folder)
        store = join_store(port, options.timeout_s)
        perform_all(options, dataset, store, rank, place, connection.send)
        connection.send(Finished(rank))
    except BaseException as error:
        connection.send(describe_failure(rank, place, error))
        connection.close()
        os._exit(1)  # not sys.exit: a thread that waits for a peer must not keep the process


def describe_failure(rank: int, place: Place, error: BaseException) -> Failed:
    """Return what a rank says when it gives up."""
    return Failed(
        rank=rank,
        doing=place.doing,
        reason=str(error) or type(error).__name__,
        consequence=isinstance(error, LinkError | ExchangeError),
        details="" if isinstance(error, GradwireError) else traceback.format_exc(),
    )


def _end_with_parent() -> None:
    """Leave at once when the parent is gone, however it went: nobody is left to report to."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
