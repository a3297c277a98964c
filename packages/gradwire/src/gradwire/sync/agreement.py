"""Ask all ranks of a group whether they are about to do the same, before anything depends on it."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from gradwire import codecs, collectives
from gradwire.errors import AttachError, GradwireError, LinkError, shown
from gradwire.exchange import Exchange
from gradwire.fields import to_values
from gradwire.launch.store import TimedStore
from gradwire.links.process_group import store_of
from gradwire.links.rendezvous.attempt import AbsentError, own_part
from gradwire.plan import Plan
from gradwire.units import ranks_in_words

REFUSED = "refused"
"""The fact by which a rank says why it cannot take part."""

AFTER_AGREEING = "did a rank fail after all had agreed to attach?"
"""The question of errors where ranks that have agreed do not connect."""

_meetings = weakref.WeakKeyDictionary[dist.ProcessGroup, int]()


def agree(group: dist.ProcessGroup, facts: Mapping[str, str], timeout_s: float) -> None:
    """Return if all ranks of ``group`` call this with equal ``facts``, through the store that they share.

    The group's ranks meet in the same order in all of their meetings. Raises ``AttachError`` on every rank,
    when facts differ, when a rank refused, and when one does not come within the timeout.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    number = _meetings.get(group, 0)
    _meetings[group] = number + 1
    doing = f"rank {rank} attaching with the {world} ranks of the model's group"
    deadline = time.monotonic() + timeout_s
    try:
        store = own_part(group, store_of(group), doing, timeout_s)
        words = TimedStore(PrefixStore(f"attach {number}", store), doing)
        problem = _problem(_exchange_facts(words, rank, world, facts, deadline))
        if problem is not None:
            _take_leave(words, rank, world, deadline)
    except AbsentError as error:
        raise AttachError(
            f"rank {rank}: within {timeout_s:g} s not all {world} ranks of the model's group attached "
            f"(no word from {ranks_in_words(error.ranks)}); look for a rank that failed, and let all of them "
            "call attach for the same models in the same order"
        ) from error
    except LinkError as error:
        raise AttachError(str(error)) from error
    if problem is not None:
        raise AttachError(f"rank {rank}: {problem}")


def facts_of(plan: Plan) -> dict[str, str]:
    """Return the facts of a plan, with the packages of codecs and algorithms that are not gradwire's."""
    parts = {name: str(part) for name, part in to_values(plan).items()}
    return parts | codecs.origins(plan) | collectives.origins(plan)


@contextmanager
def all_or_none(group: dist.ProcessGroup, timeout_s: float) -> Iterator[None]:
    """Let all ranks of ``group`` fail where one of them cannot do what is in the ``with`` block.

    That rank raises its own ``GradwireError``, the others an ``AttachError`` with its text: they call
    ``agree`` after their blocks, in its place.
    """
    try:
        yield
    except GradwireError as error:
        with suppress(AttachError):  # the others have the reason, too
            agree(group, {REFUSED: str(error)}, timeout_s)
        raise


def _exchange_facts(
    words: TimedStore, rank: int, world: int, facts: Mapping[str, str], deadline: float
) -> list[dict[str, str]]:
    words.set(_facts_of(rank), json.dumps(facts), deadline)
    try:
        words.wait([_facts_of(other) for other in range(world)], deadline)
    except LinkError:
        raise
    except TimeoutError as error:
        absent = [other for other in range(world) if not words.has([_facts_of(other)], time.monotonic())]
        raise AbsentError("some ranks did not come", absent) from error
    return [_read_facts(words.get(_facts_of(other), deadline), other) for other in range(world)]


def _facts_of(rank: int) -> str:
    return f"facts {rank}"


def _read_facts(text: str, rank: int) -> dict[str, str]:
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict) or not all(isinstance(each, str) for each in facts.values()):
            raise ValueError
    except ValueError as error:
        raise LinkError(
            f"torch's store holds {shown(text)} under {_facts_of(rank)!r}, which no rank of gradwire has "
            "written; find out who else writes to that store"
        ) from error
    return facts


def _take_leave(words: TimedStore, rank: int, world: int, deadline: float) -> None:
    """Wait until all have read: the process that serves the store may end after this."""
    words.set(f"read {rank}", "", deadline)
    with suppress(TimeoutError, LinkError):  # that rank has its own error
        words.wait([f"read {other}" for other in range(world)], deadline)


def _problem(every: Sequence[Mapping[str, str]]) -> str | None:
    refusals = [
        f"rank {rank} cannot ({facts[REFUSED]})" for rank, facts in enumerate(every) if REFUSED in facts
    ]
    if refusals:
        return f"all ranks attach or none, and {' and '.join(refusals)}"
    names = sorted({name for facts in every for name in facts})
    differences = [_difference(name, [facts.get(name, "unknown") for facts in every]) for name in names]
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
    groups = [f"{value} on {ranks_in_words(own)}" for value, own in ranks.items()]
    return f"{name} is {', '.join(groups)}"


# Messages between two steps, over the exchange: rows of numbers, their mean, or a text from rank 0.


def gather(exchange: Exchange, row: Sequence[float], timeout_s: float | None = None) -> list[list[float]]:
    """Return the rows of all ranks, in their order, as float32; all ranks call it with rows of one length.

    Raises ``ExchangeError``.
    """
    link = exchange.link
    rows = torch.zeros(link.world, len(row), dtype=torch.float32, device="cpu")
    rows[link.rank] = torch.tensor(row, dtype=torch.float32, device="cpu")
    _sum(exchange, rows.view(-1), timeout_s)
    return rows.tolist()


def mean(exchange: Exchange, values: torch.Tensor, timeout_s: float) -> None:
    """Average 1-D float32 in place, to the same bits on all ranks. Raises ``ExchangeError``."""
    if values.numel():
        Exchange(exchange.link, Plan()).all_reduce(values, timeout_s=timeout_s)


def broadcast(exchange: Exchange, text: str, timeout_s: float) -> str:
    """Return the text of rank 0; all ranks call it. Raises ``ExchangeError``."""
    own = text.encode() if exchange.link.rank == 0 else b""
    length = int(gather(exchange, [len(own)], timeout_s)[0][0])
    letters = torch.zeros(length, dtype=torch.float32, device="cpu")
    if own:
        letters.copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
    if length:
        _sum(exchange, letters, timeout_s)
    return bytes(letters.to(torch.uint8).tolist()).decode()


def _sum(exchange: Exchange, values: torch.Tensor, timeout_s: float | None) -> None:
    """Sum exactly: all but one of the terms of each value are 0."""
    Exchange(exchange.link, Plan()).all_reduce(values, average=False, timeout_s=timeout_s)
