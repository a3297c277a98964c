"""Take part in a job that ``torchrun`` has started; rank 0 shows progress and keeps the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from gradwire.errors import ExchangeError, JobError, LinkError
from gradwire.job.data import Dataset
from gradwire.job.events import Progress, RunDone, RunResult
from gradwire.job.options import JobOptions
from gradwire.job.training_run import Place
from gradwire.job.worker import perform_all
from gradwire.launch.rendezvous import check_same_options, join_launched, launched_rank


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
    check_same_options(store, rank, _shared(options))
    try:
        perform_all(options, dataset, store, rank, place, tell)
    except (LinkError, ExchangeError) as error:
        raise JobError(f"rank {rank} failed ({place.doing}): {error}") from error
    return tuple(results)


def _shared(options: JobOptions) -> dict[str, object]:
    """Return the options that all ranks must agree on; folders are each machine's own."""
    return {key: value for key, value in asdict(options).items() if key not in ("out", "data_folder")}
