"""``gradwire doctor`` as one rank of those that a launcher has started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch._C._distributed_c10d import Store  # torch.distributed exports it at run time only

from gradwire.doctor.diagnosis import Diagnosis, DoctorOptions
from gradwire.doctor.facts import Card
from gradwire.doctor.finding import Finding
from gradwire.doctor.local import examine_machine
from gradwire.doctor.messages import Words
from gradwire.doctor.visit import follow, lead
from gradwire.errors import JobError, LinkError
from gradwire.launch.context import RankContext
from gradwire.launch.group import joined_group
from gradwire.launch.rendezvous import join_launched
from gradwire.links import Link, ProcessGroupLink
from gradwire.plan import Plan


def examine_ranks(rank: int, world: int, options: DoctorOptions) -> tuple[str, Diagnosis | None, int]:
    """Be one of several ranks; return the report's title and what to report, or None and the exit code.

    Rank 0 reports for all ranks, another one only what keeps it from being heard.
    """
    context: RankContext[None] = RankContext(
        rank, world, lambda _: None, lambda: join_launched(options.timeout_s)
    )
    title = f"gradwire doctor: rank {rank} of {world}"
    card = examine_machine(options.plan_file, world, context.ranks_here)
    try:
        store = context.join_store()
    except JobError as error:
        return title, _with_failure(rank, card, "rendezvous", str(error)), 1
    words, connect = Words(store), partial(_connected, store, rank, world, options.timeout_s, card)
    if rank == 0:
        diagnosis = lead(words, card, world, connect, options.timeout_s, lines=options.lines)
        return f"gradwire doctor: {world} ranks", diagnosis, 0
    try:
        return title, None, follow(words, card, rank, connect, options.timeout_s)
    except LinkError as error:
        return title, _with_failure(rank, card, "rank 0", f"{error}; is it still running?"), 1


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
