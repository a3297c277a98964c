"""A whole job, from checked options to written files."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gradwire.errors import JobError
from gradwire.job.data import Dataset, find, load
from gradwire.job.display import make_display
from gradwire.job.events import RunResult
from gradwire.job.launch import perform_joined, perform_local
from gradwire.job.options import FILES, JobOptions, check, check_data
from gradwire.job.page import page_of
from gradwire.job.plot import draw
from gradwire.job.record import job_record
from gradwire.job.report import show_report
from gradwire.launch.launched import is_launched, launched_rank
from gradwire.page import keep


def perform_job(options: JobOptions) -> Path | None:
    """Perform the job; return the folder of its files, None on ranks that keep none.

    ``options.data_folder`` is where the user says that the files are. Raises ``GradwireError``, before any
    process is started for whatever can be known by then.
    """
    check(options)
    options = replace(options, data_folder=find(options.data, options.data_folder))
    dataset = load(options.data, options.data_folder)
    check_data(options, dataset)
    if is_launched() and launched_rank()[0] > 0:
        perform_joined(options, dataset, lambda _event: None)
        return None
    results = _perform(options, dataset)
    show_report(options, results)
    sys.stdout.flush()
    _keep(options, results)
    return options.out


def _keep(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    """Write the files, all or none; the table has been printed. Raises ``JobError``."""
    try:
        record, plot = (options.out / name for name in FILES)
        keep(record, job_record(options, results), page_of, {plot: draw(options, results)}, quiet=True)
    except (OSError, JobError) as error:
        raise JobError(
            f"{error}; {' and '.join(FILES)} were not written: the table above is what is left of the job"
        ) from error


def _perform(options: JobOptions, dataset: Dataset) -> tuple[RunResult, ...]:
    with make_display() as display:
        if is_launched():
            return perform_joined(options, dataset, display.show)
        return perform_local(options, display.show)
