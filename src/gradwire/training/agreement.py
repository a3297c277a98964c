"""Ask all ranks of a group whether they are about to do the same, before anything depends on it."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gradwire.errors import AttachError, LinkError
from gradwire.links.process_group import store_of

REFUSED = "refused"
"""The fact with which a rank tells why it cannot take part."""

AFTER_AGREEING = "did a rank fail after all had agreed to attach?"
"""What errors ask where ranks that have agreed do not connect."""

_meetings = weakref.WeakKeyDictionary[dist.ProcessGroup, int]()


def agree(group: dist.ProcessGroup, facts: Mapping[str, str], timeout_s: float) -> None:
    """Return if all ranks of ``group`` call this with equal ``facts``, through the store that they share.

    Parameters
    ----------
    group
        This process belongs to it. Its ranks meet in the same order in all of their meetings.
    facts
        What must be equal, by its name.
    timeout_s
        How long to wait for the others.

    Raises
    ------
    AttachError
        On every rank, when facts differ, when a rank refused, and when one does not come in time.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    number = _meetings.get(group, 0)
    _meetings[group] = number + 1
    try:
        store = PrefixStore(f"gradwire/attach/{number}", store_of(group))
    except LinkError as error:
        raise AttachError(str(error)) from error
    told = _exchange_facts(store, rank, world, facts, timeout_s)
    problem = _problem(told)
    if problem is not None:
        _take_leave(store, rank, world, timeout_s)
        raise AttachError(f"rank {rank}: {problem}")


def _exchange_facts(
    store: Store, rank: int, world: int, facts: Mapping[str, str], timeout_s: float
) -> list[dict[str, str]]:
    store.set(f"facts {rank}", json.dumps(facts))
    keys = [f"facts {other}" for other in range(world)]
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
        return [json.loads(store.get(key)) for key in keys]
    except RuntimeError as error:
        raise AttachError(
            f"rank {rank}: within {timeout_s:g} s not all {world} ranks of the model's group attached"
            f"{_silent(store, world)}; look for a rank that failed, and let all of them call attach for the "
            "same models in the same order"
        ) from error


def _silent(store: Store, world: int) -> str:
    """Name the ranks that have told nothing; say nothing where the store itself is gone."""
    try:
        silent = [rank for rank in range(world) if not store.check([f"facts {rank}"])]
    except RuntimeError:
        return ""
    return f" (no word from {_ranks(silent)})" if silent else ""


def _take_leave(store: Store, rank: int, world: int, timeout_s: float) -> None:
    """Wait until all have read: the process that serves the store may end after this."""
    store.set(f"read {rank}", "")
    try:
        store.wait([f"read {other}" for other in range(world)], timedelta(seconds=timeout_s))
    except RuntimeError:
        return  # that rank has its own error


def _problem(told: Sequence[Mapping[str, str]]) -> str | None:
    refusals = [
        f"rank {rank} cannot ({facts[REFUSED]})" for rank, facts in enumerate(told) if REFUSED in facts
    ]
    if refusals:
        return f"all ranks attach or none, and {' and '.join(refusals)}"
    names = sorted({name for facts in told for name in facts})
    differences = [_difference(name, [facts.get(name, "unknown") for facts in told]) for name in names]
    found = [difference for difference in differences if difference]
    if not found:
        return None
    return f"all ranks attach alike, but {' and '.join(found)}; give every rank the same plan and gradwire"


def _difference(name: str, values: Sequence[str]) -> str | None:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    if len(ranks) == 1:
        return None
    groups = [f"{value} on {_ranks(own)}" for value, own in ranks.items()]
    return f"{name} is {', '.join(groups)}"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
