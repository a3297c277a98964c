"""What one rank does: meet the others, perform the runs one after the other."""

from __future__ import annotations

import torch

from gradwire.job.data import Dataset, load
from gradwire.job.events import Progress
from gradwire.job.options import JobOptions
from gradwire.job.team import Team
from gradwire.job.train_loop import Job, perform
from gradwire.launch.context import RankContext
from gradwire.launch.group import joined_group
from gradwire.machine import cores


def load_and_perform(context: RankContext[Progress], options: JobOptions) -> None:
    """Perform the job in a process that has nothing yet. Raises ``GradwireError``."""
    perform_all(context, options, load(options.data, options.data_folder))


def perform_all(context: RankContext[Progress], options: JobOptions, dataset: Dataset) -> None:
    """Perform every run of the job. Raises ``GradwireError``."""
    torch.set_num_threads(max(1, cores() // context.ranks_here))
    store = context.join_store()
    with joined_group(store, context.rank, context.world, options.timeout_s):
        job = Job(options, dataset, Team(store, context.rank, options), context)
        for run in options.runs:
            perform(run, job)
