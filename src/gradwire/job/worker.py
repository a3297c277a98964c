"""What one rank does: meet the others, perform the runs one after the other."""

from __future__ import annotations

import torch

from gradwire.job.data import Dataset, load
from gradwire.job.events import Progress
from gradwire.job.options import JobOptions
from gradwire.job.team import Team
from gradwire.job.train_loop import Job, Place, perform
from gradwire.launch.group import joined_group
from gradwire.launch.seat import Seat
from gradwire.machine import cores


def load_and_perform(seat: Seat[Progress], options: JobOptions) -> None:
    """Perform the job in a process that has nothing yet. Raises ``GradwireError``."""
    perform_all(seat, options, load(options.data, options.data_folder))


def perform_all(seat: Seat[Progress], options: JobOptions, dataset: Dataset) -> None:
    """Perform every run of the job. Raises ``GradwireError``."""
    torch.set_num_threads(max(1, cores() // seat.neighbours))
    store = seat.meet()
    place = Place()
    with joined_group(store, seat.rank, seat.world, options.timeout_s):
        job = Job(options, dataset, Team(store, seat.rank, options), place, seat.tell)
        try:
            for run in options.runs:
                perform(run, job)
        finally:
            seat.doing = place.doing
