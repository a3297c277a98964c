"""``gradwire doctor``: this machine alone, or as one rank of those that a launcher has started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch._C._distributed_c10d import Store  # torch.distributed exports it at run time only

from gradwire.doctor.facts import Card
from gradwire.doctor.finding import Finding, any_failed
from gradwire.doctor.local import examine_machine
from gradwire.doctor.messages import Words
from gradwire.doctor.page import page_of
from gradwire.doctor.report import describe, show_report
from gradwire.doctor.visit import Diagnosis, follow, lead
from gradwire.errors import JobError, LinkError
from gradwire.files import check_writable
from gradwire.launch.context import RankContext
from gradwire.launch.group import joined_group
from gradwire.launch.launched import launched_rank, launched_workers
from gradwire.launch.rendezvous import join_launched
from gradwire.links import Link, ProcessGroupLink
from gradwire.page import check_page, keep
from gradwire.plan import Plan


@dataclass(frozen=True)
class DoctorOptions:
    """What is asked for: a plan to try, where rank 0's record goes, how long waits last, a look at lines."""

    plan_file: Path | None = None
    json_file: Path | None = None
    timeout_s: float = 30.0
    lines: bool = True
    overwrite: bool = False


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
    return _examine_rank(rank, world, options)


def _examine_rank(rank: int, world: int, options: DoctorOptions) -> int:
    """Be one of several ranks: rank 0 reports for all, another one only what keeps it from being heard."""
    context: RankContext[None] = RankContext(
        rank, world, lambda _: None, lambda: join_launched(options.timeout_s)
    )
    title = f"gradwire doctor: rank {rank} of {world}"
    card = examine_machine(options.plan_file, world, context.ranks_here)
    try:
        store = context.join_store()
    except JobError as error:
        return _conclude(title, _with_failure(rank, card, "rendezvous", str(error)), options)
    words, connect = Words(store), partial(_connected, store, rank, world, options.timeout_s, card)
    if rank == 0:
        diagnosis = lead(words, card, world, connect, options.timeout_s, lines=options.lines)
        return _conclude(f"gradwire doctor: {world} ranks", diagnosis, options)
    try:
        return follow(words, card, rank, connect, options.timeout_s)
    except LinkError as error:
        return _conclude(
            title, _with_failure(rank, card, "rank 0", f"{error}; is it still running?"), options
        )


@contextmanager
def _connected(store: Store, rank: int, world: int, timeout_s: float, card: Card) -> Iterator[Link]:
    tos = Plan.from_json(card.plan).tos if card.plan else 0
    with joined_group(store, rank, world, timeout_s) as group:
        link = ProcessGroupLink(group, timeout_s=timeout_s, tos=tos)
        try:
            yield link
        finally:
            link.close()


def _with_failure(rank: int, card: Card, check: str, detail: str) -> Diagnosis:
    return Diagnosis([*card.findings, Finding(check, "FAIL", detail)], [card], [rank])


def _conclude(title: str, diagnosis: Diagnosis, options: DoctorOptions) -> int:
    show_report(title, diagnosis)
    if options.json_file is not None:
        keep(options.json_file, describe(diagnosis), page_of)
    return int(any_failed(diagnosis.findings))
