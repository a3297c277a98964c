"""A ``torch.distributed`` group: its members' agreement on settings, and their connections."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from gradwire import codecs, collectives
from gradwire.codecs.spec import is_real
from gradwire.errors import AttachError, ExchangeError, GradwireError, LinkError, SpecError, shown
from gradwire.fields import to_values
from gradwire.launch.store import TimedStore
from gradwire.links.process_group import ProcessGroupLink, store_of
from gradwire.links.rendezvous.attempt import AbsentError, own_part
from gradwire.plan import Plan
from gradwire.units import ranks_in_words

_LONGEST_TIMEOUT_S = 1e6


def check_timeout(timeout_s: float, name: str = "timeout_s") -> None:
    """Raise ``SpecError`` unless ``timeout_s`` is a valid timeout. ``name`` is the argument's name."""
    if not is_real(timeout_s, 0.0, _LONGEST_TIMEOUT_S) or timeout_s == 0:
        raise SpecError(
            f"expected {name} above 0 and at most {_LONGEST_TIMEOUT_S:g} seconds, got {shown(timeout_s)}; "
            "pass, for example, 30"
        )


def check_initialised(kind: type[GradwireError] = ExchangeError, otherwise: str = "") -> None:
    """Raise ``kind`` unless ``torch.distributed`` is initialised; ``otherwise`` is a second remedy."""
    if not dist.is_available() or not dist.is_initialized():
        advice = f"call torch.distributed.init_process_group first{otherwise}"
        raise kind(f"torch.distributed is not initialised; {advice}")


def member_group(group: dist.ProcessGroup | None, doing: str, otherwise: str = "") -> dist.ProcessGroup:
    """Return ``group``, or the world's group for None, or raise ``ExchangeError`` for a non-member.

    ``doing`` is the call that errors recommend, as an imperative.
    """
    check_initialised(otherwise=otherwise)
    chosen: object = dist.group.WORLD if group is None else group
    if isinstance(chosen, dist.ProcessGroup):
        try:
            if dist.get_rank(chosen) >= 0:
                return chosen
        except ValueError as error:
            raise ExchangeError(
                f"rank {dist.get_rank()}: this group has been destroyed; create another with new_group"
            ) from error
    elif chosen != dist.GroupMember.NON_GROUP_MEMBER:  # the result of new_group on ranks outside the group
        raise ExchangeError(
            f"expected a group of torch.distributed, got {shown(group)}; pass the result of new_group or of "
            "a DeviceMesh's get_group"
        )
    raise ExchangeError(f"rank {dist.get_rank()} is not in the group; {doing} on the group's ranks only")


def connect(
    group: dist.ProcessGroup,
    timeout_s: float,
    kind: type[GradwireError],
    ending: str,
    ranks: Sequence[int] | None = None,
    tos: int = 0,
    lane: int = 0,
) -> ProcessGroupLink:
    """Return a new link between the members of ``group``, in the order of ``ranks``.

    ``tos`` is the plan's type of service, and ``lane`` the link's number among a model's lanes. Raises
    ``kind``, with ``ending`` if a link can't be made, for example because members are absent.
    """
    try:
        store_of(group)
    except LinkError as error:
        raise kind(str(error)) from error
    try:
        return ProcessGroupLink(group, ranks, timeout_s, tos, lane)
    except LinkError as error:
        raise kind(f"{error}{ending}") from error


REFUSED = "refused"  # the name of the fact that contains a rank's reason for not attaching

AFTER_AGREEING = "look for a rank that failed after all ranks had agreed to attach"
"""The advice in errors for ranks that have agreed but do not connect."""

_agreements = weakref.WeakKeyDictionary[dist.ProcessGroup, int]()
"""The number of calls of ``agree`` for each group, so that each call has its own keys in the store."""


def agree(group: dist.ProcessGroup, facts: Mapping[str, str], timeout_s: float) -> None:
    """Check through the group's store that all ranks of ``group`` call this with equal ``facts``.

    All ranks call it for their groups in the same order. Raises ``AttachError`` on every rank if facts
    differ, a rank has refused, or a rank is absent until the timeout.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    number = _agreements.get(group, 0)
    _agreements[group] = number + 1
    doing = f"rank {rank} attaching with the {world} ranks of the model's group"
    deadline = time.monotonic() + timeout_s
    try:
        store = own_part(group, store_of(group), doing, timeout_s)
        words = TimedStore(PrefixStore(f"attach {number}", store), doing)
        problem = _problem(_exchange_facts(words, rank, world, facts, deadline))
        if problem is not None:
            words.set(f"read {rank}", "", deadline)
            # The process that serves the store may end next. An absent rank raises its own error.
            with suppress(TimeoutError, LinkError):
                words.wait([f"read {other}" for other in range(world)], deadline)
    except AbsentError as error:
        raise AttachError(
            f"rank {rank}: expected all {world} ranks of the model's group to attach within {timeout_s:g} s, "
            f"got nothing from {ranks_in_words(error.ranks)}; look for a failed rank, and attach the same "
            "models in the same order on all ranks"
        ) from error
    except LinkError as error:
        raise AttachError(str(error)) from error
    if problem is not None:
        raise AttachError(f"rank {rank}: {problem}")


def facts_of(plan: Plan) -> dict[str, str]:
    """Return the facts of a plan, including the packages of third-party codecs and algorithms."""
    parts = {name: str(part) for name, part in to_values(plan).items()}
    parts["lanes"] = str(plan.lanes)  # a plan's values omit a single lane
    return parts | codecs.origins(plan.encodings) | collectives.origins(plan.algorithm)


@contextmanager
def all_or_none(group: dist.ProcessGroup, timeout_s: float) -> Iterator[None]:
    """Make all ranks of ``group`` fail if the ``with`` block of one of them raises a ``GradwireError``.

    Every other rank raises an ``AttachError`` with this error's text when it calls ``agree`` after its block.
    """
    try:
        yield
    except GradwireError as error:
        with suppress(AttachError):  # agree raises this error's text on all ranks
            agree(group, {REFUSED: str(error)}, timeout_s)
        raise


def _exchange_facts(
    words: TimedStore, rank: int, world: int, facts: Mapping[str, str], deadline: float
) -> list[dict[str, str]]:
    keys = [f"facts {each}" for each in range(world)]
    words.set(keys[rank], json.dumps(facts), deadline)
    try:
        texts = words.get(keys, deadline)
    except LinkError:
        raise
    except TimeoutError as error:
        absent = [each for each, key in enumerate(keys) if not words.has([key], time.monotonic())]
        raise AbsentError("some ranks are absent", absent) from error
    return [_read_facts(text, key) for key, text in zip(keys, texts, strict=True)]


def _read_facts(text: str, key: str) -> dict[str, str]:
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict) or not all(isinstance(each, str) for each in facts.values()):
            raise ValueError
    except ValueError as error:
        raise LinkError(
            f"expected gradwire's facts under {key!r} in torch's store, got {shown(text)}; look "
            "for another program that writes to this store"
        ) from error
    return facts


def _problem(every: Sequence[Mapping[str, str]]) -> str | None:
    refusals = [
        f"rank {rank} cannot ({facts[REFUSED]})" for rank, facts in enumerate(every) if REFUSED in facts
    ]
    if refusals:
        return f"expected all ranks to attach, but {' and '.join(refusals)}"
    differences = list[str]()
    for name in sorted({name for facts in every for name in facts}):
        ranks: dict[str, list[int]] = {}
        for rank, facts in enumerate(every):
            ranks.setdefault(facts.get(name, "unknown"), []).append(rank)
        if len(ranks) > 1:
            groups = [f"{value} on {ranks_in_words(own)}" for value, own in ranks.items()]
            differences.append(f"{name} is {', '.join(groups)}")
    if not differences:
        return None
    return (
        f"expected the same settings on all ranks, but {' and '.join(differences)}; use the same plan and "
        "version of gradwire on all ranks"
    )
