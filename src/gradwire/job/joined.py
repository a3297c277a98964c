"""Take part in a job that ``torchrun`` has started; rank 0 shows progress and keeps the results."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.errors import ExchangeError, JobError, LinkError
from gradwire.job.data import Dataset
from gradwire.job.events import Progress, RunDone, RunResult
from gradwire.job.options import JobOptions
from gradwire.job.rendezvous import check_same_options, join_launched, launched_rank
from gradwire.job.training_run import Place
from gradwire.job.worker import perform_all


def run_joined(
    options: JobOptions, dataset: Dataset, show: Callable[[Progress], None]
) -> tuple[RunResult, ...]:
    """Perform the job as one rank of many; only rank 0 has results. Raises ``JobError``."""
    rank, _ = launched_rank()
    results: list[RunResult] = []

    def tell(event: Progress) -> None:
        show(event)
        if isinstance(event, RunDone):
            results.append(event.result)

    place = Place()
    store = join_launched(options.timeout_s)
    check_same_options(store, rank, options)
    try:
        perform_all(options, dataset, store, rank, place, tell)
    except (LinkError, ExchangeError) as error:
        raise JobError(f"rank {rank} failed ({place.doing}): {error}") from error
    return tuple(results)
