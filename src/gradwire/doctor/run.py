"""``gradwire doctor``: this machine alone, or as one rank of those that a launcher has started."""

from __future__ import annotations

from gradwire.doctor.diagnosis import Diagnosis, DoctorOptions
from gradwire.doctor.finding import any_failed
from gradwire.doctor.local import examine_machine
from gradwire.doctor.page import page_of
from gradwire.doctor.report import describe, show_report
from gradwire.errors import JobError
from gradwire.files import check_writable
from gradwire.launch.launched import launched_rank, launched_workers
from gradwire.page import check_page, keep
from gradwire.version import import_problem


def run_doctor(options: DoctorOptions) -> int:
    """Examine, print and write; return 1 where training would fail, else 0. Raises ``GradwireError``."""
    if not 1 <= options.timeout_s <= 86_400:
        raise JobError(f"--timeout must be 1 to 86400 (seconds), but is {options.timeout_s:g}")
    world = launched_workers(has_server=False, asked=None) or 1
    rank = launched_rank()[0] if world > 1 else 0
    if options.json_file is not None and rank == 0:
        check_writable("--json", options.json_file, options.overwrite)
        check_page("--json", options.json_file, options.overwrite)
    if world == 1:
        card = examine_machine(options.plan_file, 1, 1)
        return _conclude(
            "gradwire doctor: this machine", Diagnosis(list(card.findings), [card], [0]), options
        )
    if import_problem("torch"):
        card = examine_machine(options.plan_file, world, 1)
        title = f"gradwire doctor: rank {rank} of {world}"
        return _conclude(title, Diagnosis(list(card.findings), [card], [rank]), options)
    from gradwire.doctor.ranks import examine_ranks

    title, diagnosis, code = examine_ranks(rank, world, options)
    return code if diagnosis is None else _conclude(title, diagnosis, options)


def _conclude(title: str, diagnosis: Diagnosis, options: DoctorOptions) -> int:
    show_report(title, diagnosis)
    if options.json_file is not None:
        keep(options.json_file, describe(diagnosis), page_of)
    return int(any_failed(diagnosis.findings))
