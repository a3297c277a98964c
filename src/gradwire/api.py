"""The front door: one function that all-reduces a tensor between the processes of ``torch.distributed``."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.distributed as dist

from gradwire.codecs import Codec, parse
from gradwire.codecs.spec import is_real
from gradwire.errors import ExchangeError, GradwireError, LinkError, SpecError, TensorError
from gradwire.exchange import Exchange
from gradwire.links.process_group import ProcessGroupLink, store_of
from gradwire.plan import Plan

DEFAULT_CODEC = "fp8"
"""Free of scale and safe for any model: docs/which_codec.md has the losses that it was chosen by."""
_KEPT_EXCHANGES = 8  # for a group; each has buffers of its own, which a changing codec must not pile up
_LONGEST_TIMEOUT_S = 1e6


class _Member:
    """What this process keeps for one of the user's groups: a link, and exchanges for the latest plans.

    All ranks call with the same plans in the same order, so all of them forget the same exchange.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        link = connect(group, timeout_s, ExchangeError, "; do all ranks of the group call all_reduce?")
        self.link = link
        self.exchange = lru_cache(_KEPT_EXCHANGES)(lambda plan: Exchange(link, plan))


_members = weakref.WeakKeyDictionary[dist.ProcessGroup, _Member]()
_in_use = weakref.WeakSet[dist.ProcessGroup]()
_in_use_lock = threading.Lock()


def all_reduce(
    tensor: torch.Tensor,
    codec: str | Codec | None = None,
    *,
    algorithm: str | None = None,
    group: dist.ProcessGroup | None = None,
    average: bool = True,
    segment_nbytes: int | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    timeout_s: float = 30.0,
) -> torch.Tensor:
    """Replace ``tensor`` by its average (or sum) over the ranks of a group, compressed on every hop.

    All ranks of the group call this in the same order with the same arguments and end with identical bits.
    The first call with a group makes connections of its own between the ranks, which are kept as long as the
    group.

    Parameters
    ----------
    tensor
        Contiguous, float32, on the CPU, of any shape, the same on all ranks; changed in place.
    codec
        A codec or its spec; ``fp8`` by default.
    algorithm
        ``ring``, which is the default, ``star``, ``tree``, ``butterfly`` or a hierarchy such as
        ``hierarchical:4,ring+star``.
    group
        A group of ``torch.distributed`` that this process belongs to; None is the world.
    average
        Whether to divide the sum by the number of ranks.
    segment_nbytes
        See ``Plan``.
    plan
        A plan, or the file that ``Plan.save`` or the planner wrote (read in every call), instead of
        ``codec``, ``algorithm`` and ``segment_nbytes``. Its pipeline and its buckets are training's; here
        ``tensor`` is one bucket.
    timeout_s
        How long any single wait for a peer lasts before it is an error; above 0, at most 1e6.

    Returns
    -------
    torch.Tensor
        ``tensor``.

    Raises
    ------
    SpecError
        For a codec, an algorithm, a segment size, a plan or a timeout that cannot be, and for a plan beside
        a part of one.
    TensorError
        For a tensor that cannot be exchanged; nothing has been sent and nothing changed.
    ExchangeError
        When ``torch.distributed`` is not initialised, this rank is not in the group or another thread is
        using it, and when a peer fails or disagrees; the tensor is then partly summed. Ranks that go on
        meet at a barrier of their own first, so that all of them begin the next call together.
    """
    _check(tensor)
    chosen = _choose(plan, codec, algorithm, segment_nbytes)
    check_timeout(timeout_s)
    group = member_group(group, "call all_reduce")
    with _alone_in(group):
        member = _members.get(group)
        if member is None:
            member = _members[group] = _Member(group, timeout_s)
        member.link.timeout_s = timeout_s
        try:
            member.exchange(chosen).all_reduce(tensor.detach().view(-1), average)
        except BaseException:
            del _members[group]  # the link is closed; another call starts afresh
            raise
    return tensor


def _choose(
    plan: Plan | str | os.PathLike[str] | None,
    codec: str | Codec | None,
    algorithm: str | None,
    segment_nbytes: int | None,
) -> Plan:
    """Return ``plan``, read from its file where it is one, or else the plan of these parts."""
    if plan is None:
        codec = DEFAULT_CODEC if codec is None else codec
        return Plan(
            parse(codec) if isinstance(codec, str) else codec,
            Plan.algorithm if algorithm is None else algorithm,
            Plan.segment_nbytes if segment_nbytes is None else segment_nbytes,
        )
    parts = {"codec": codec, "algorithm": algorithm, "segment_nbytes": segment_nbytes}
    given = [name for name, part in parts.items() if part is not None]
    if given:
        raise SpecError(f"a plan says everything itself; leave out {' and '.join(given)}, or the plan")
    if isinstance(plan, Plan):
        return plan
    if not isinstance(plan, str | os.PathLike):
        raise SpecError(f"plan must be a Plan or the path of its file, but is {plan!r}")
    return Plan.load(plan)


def check_timeout(timeout_s: float, name: str = "timeout_s") -> None:
    """Raise ``SpecError`` unless a wait may last so many seconds; ``name`` is the argument's."""
    if not is_real(timeout_s, 0.0, _LONGEST_TIMEOUT_S) or timeout_s == 0:
        raise SpecError(f"{name} must be above 0 and at most {_LONGEST_TIMEOUT_S:g}, but is {timeout_s!r}")


@contextmanager
def _alone_in(group: dist.ProcessGroup) -> Iterator[None]:
    """Refuse a second thread: which of its calls would meet which call of a peer's threads is not defined."""
    with _in_use_lock:
        if group in _in_use:
            raise ExchangeError(
                f"rank {dist.get_rank()}: another thread is in all_reduce with this group; call it from one "
                "thread at a time, or give each thread a group of its own"
            )
        _in_use.add(group)
    try:
        yield
    finally:
        with _in_use_lock:
            _in_use.discard(group)


def _check(tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TensorError(f"all_reduce wants a torch tensor, but got a {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise TensorError(
            f"all_reduce wants a tensor on the CPU, but this one is on {tensor.device}; use .cpu()"
        )
    if tensor.dtype != torch.float32:
        raise TensorError(f"all_reduce wants torch.float32, but the tensor is {tensor.dtype}; use .float()")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise TensorError(
            "all_reduce wants a dense tensor, but this one is sparse or nested; use .to_dense()"
        )
    if not tensor.is_contiguous():
        raise TensorError("all_reduce wants a contiguous tensor, but this one has gaps; use .contiguous()")


def check_initialised(kind: type[GradwireError] = ExchangeError, otherwise: str = "") -> None:
    """Raise ``kind`` unless ``torch.distributed`` is initialised; ``otherwise`` is another thing to do."""
    if not dist.is_available() or not dist.is_initialized():
        raise kind(
            "torch.distributed is not initialised; call torch.distributed.init_process_group first"
            f"{otherwise}"
        )


def member_group(group: dist.ProcessGroup | None, doing: str, otherwise: str = "") -> dist.ProcessGroup:
    """Return ``group``, or the world; this process is to be in it, ``doing`` something with its ranks.

    Raises ``ExchangeError``, also where ``torch.distributed`` is not initialised.
    """
    check_initialised(otherwise=otherwise)
    world = dist.group.WORLD
    chosen = world if group is None else group
    if not isinstance(chosen, dist.ProcessGroup) or dist.get_rank(chosen) < 0:
        raise ExchangeError(f"rank {dist.get_rank()} is not in the group; {doing} on the group's ranks only")
    return chosen


def connect(
    group: dist.ProcessGroup,
    timeout_s: float,
    kind: type[GradwireError],
    ending: str,
    ranks: Sequence[int] | None = None,
) -> ProcessGroupLink:
    """Return a new link with the members of ``group``, in the order of ``ranks``.

    Raises ``kind``: where they do not come the text ends with ``ending``.
    """
    try:
        store_of(group)
    except LinkError as error:
        raise kind(str(error)) from error
    try:
        return ProcessGroupLink(group, ranks, timeout_s)
    except LinkError as error:
        raise kind(f"{error}{ending}") from error
