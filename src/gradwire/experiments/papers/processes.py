"""Ranks as processes of this machine, over links that keep to a rate and a latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from gradwire.experiments.papers.threads import TIMEOUT_S, Result

if TYPE_CHECKING:  # torch's import takes seconds
    from gradwire.launch.context import RankContext
    from gradwire.links import Link


@dataclass(frozen=True)
class _Work(Generic[Result]):
    """What every process gets."""

    work: Callable[[Link], Result]
    nbytes_per_s: float | None
    latency_s: float


def on_processes(
    world: int, work: Callable[[Link], Result], nbytes_per_s: float | None, latency_s: float = 0.0
) -> list[Result]:
    """Call ``work`` with each rank's link in a process of its own; return the results by rank.

    As ``on_threads``, but ranks do not share an interpreter, whose lock makes the threads of short steps wait
    for each other. ``work`` and the results are pickled. Where a rank fails, raises ``JobError`` with what
    seems the cause, and ``RuntimeError`` with its traceback for an error that isn't one of gradwire's.
    """
    from gradwire.launch.context import Task
    from gradwire.launch.local import run_local

    found: dict[int, Result] = {}
    task = Task(
        work=_perform,
        options=_Work(work, nbytes_per_s, latency_s),
        world=world,
        timeout_s=TIMEOUT_S,
        preload=("gradwire.training", "torch._dynamo"),
    )
    run_local(task, lambda event: found.update([event]))
    return [found[rank] for rank in range(world)]


def _perform(context: RankContext[tuple[int, Result]], options: _Work[Result]) -> None:
    from gradwire.launch.group import in_words, joined_group
    from gradwire.links import ProcessGroupLink
    from gradwire.links.throttle import Port, ThrottledLink

    store = context.join_store()
    with joined_group(store, context.rank, context.world, TIMEOUT_S) as group:
        port = Port(options.nbytes_per_s, options.latency_s)
        link = ThrottledLink(ProcessGroupLink(group, timeout_s=TIMEOUT_S), port)
        try:
            context.doing = "at work"
            context.report((context.rank, options.work(link)))
            with in_words(f"rank {context.rank} waited for the others", TIMEOUT_S):
                group.barrier().wait()  # no rank sees a closed link
        finally:
            link.close()
