"""``gradwire.all_reduce``: all-reduce a tensor between the processes of ``torch.distributed``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from gradwire.codecs import Codec, codec_of
from gradwire.devices import Staged, Staging
from gradwire.errors import ExchangeError, SpecError, TensorError, shown
from gradwire.exchange import Exchange
from gradwire.plan import Plan, PlanLike
from gradwire.sync.bucket.work import FLOATS
from gradwire.sync.group import check_timeout, connect, member_group

# Checks that an exchange can change a tensor in place, directly or through a float32 copy.

_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_TAKEN = (*FLOATS, *_EIGHT_BITS, torch.float64)
"""The accepted dtypes. Values are exchanged as float32, which is exact for all of these except float64."""


def check_in_place(tensor: torch.Tensor, caller: str) -> None:
    """Raise ``TensorError``, with the remedy, if ``caller`` can't change ``tensor`` in place."""
    if (fault := _fault(tensor, caller)) is not None:
        raise TensorError(f"{caller}: expected {fault}")


def _fault(tensor: object, caller: str) -> str | None:
    def returned(copy: str) -> str:
        return f"write averaged = {caller}({copy}), and use the returned tensor"

    if not isinstance(tensor, torch.Tensor):
        return (
            f"one torch tensor, got a {type(tensor).__name__}; pass one tensor per call, and convert an "
            "array with torch.from_numpy(array)"
        )
    if is_lazy(tensor):  # first, because a lazy parameter supports no other check
        return "an initialized parameter, got a lazy parameter without values; run a forward pass first"
    if tensor.is_nested:
        return "a dense tensor, got a nested one; pass tensor.values(), which is a view"
    if tensor.layout != torch.strided:
        return f"a dense tensor, got the layout {tensor.layout}; {returned('tensor.to_dense()')}"
    if not _has_memory(tensor):
        return (
            f"a tensor with values in memory, got a {type(tensor).__name__} on {tensor.device} without "
            "values (a meta tensor, a freed tensor, or a wrapper); pass the tensor with the values, or "
            "tensor.to_local() for a DTensor"
        )
    if tensor.is_complex():
        return (
            f"a floating point tensor, got {tensor.dtype}; pass torch.view_as_real(tensor), which is a view"
        )
    if tensor.dtype not in _TAKEN:
        floats = "tensor.dequantize()" if tensor.is_quantized else "tensor.float()"
        return f"a floating point tensor, got {tensor.dtype}; {returned(floats)}"
    if _may_share_memory(tensor):
        return (
            "separate memory for every element, got elements that share memory, as after expand; "
            + returned("tensor.clone()")
        )
    return None


def _has_memory(tensor: torch.Tensor) -> bool:
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False  # a DTensor, a FakeTensor, or a tensor of a similar class
    try:
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # data_ptr raises this error within vmap and grad
        return False


def _may_share_memory(tensor: torch.Tensor) -> bool:
    """Return whether elements of a tensor may share memory.

    They may if the stride of a dimension is at most the largest offset that the dimensions with smaller
    strides reach together.
    """
    reached = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reached:
            return tensor.numel() > 0
        reached += stride * (size - 1)
    return False


_KEPT_EXCHANGES = 8  # the most exchanges kept for a group, because every exchange keeps its buffers


class _Member:
    """The link of one process for one of the user's groups, with exchanges for the most recently used plans.

    All ranks call ``all_reduce`` with the same plans in the same order, so all ranks evict the same exchange.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float, tos: int) -> None:
        ending = "; call all_reduce on all ranks of the group"
        link = connect(group, timeout_s, ExchangeError, ending, tos=tos)
        self.exchange = lru_cache(_KEPT_EXCHANGES)(lambda plan: Exchange(link, plan))


_members = weakref.WeakKeyDictionary[dist.ProcessGroup, dict[int, _Member]]()
"""Each group's ``_Member`` objects, keyed by the IP type of service of their connections."""
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
    plan: PlanLike = None,
    timeout_s: float = 30.0,
) -> torch.Tensor:
    """Replace ``tensor`` with its average (or sum) over the ranks of a group, compressed on every hop.

    All ranks of the group must call ``all_reduce`` in the same order with the same arguments, and all end
    with identical bits. The first call with a group opens separate connections between the ranks, which stay
    open as long as the group exists.

    Values are exchanged as float32. A tensor that isn't contiguous float32 on the CPU is copied to float32
    and back (on its device, if the plan has ``encode_on="device"``), and the result is rounded once to the
    tensor's dtype, as by ``copy_``. A float64 result is therefore limited to the precision and range of
    float32. Autograd doesn't record the call, as with ``torch.distributed.all_reduce``: you can average
    parameters, and no gradient flows through the call. ``backward`` raises an error if it needs the values
    from before the call.

    Parameters
    ----------
    tensor
        Floats of 8 to 64 bits, of any layout, on any device, changed in place. The shape must be the same on
        all ranks; if dtypes differ, each rank rounds the result to its own dtype. Tensors that can't be
        changed in place are refused: integer tensors, sparse tensors, and tensors whose elements share
        memory, as after ``expand``.
    codec
        A codec or its spec; ``fp8`` by default.
    algorithm
        ``ring`` (the default), ``pairwise``, ``star``, ``tree``, ``butterfly``, or a hierarchy such as
        ``hierarchical:4,ring+star``.
    group
        A group of ``torch.distributed`` that this process belongs to; None for the default group.
    average
        Whether to divide the sum by the number of ranks.
    segment_nbytes
        See ``Plan``.
    plan
        A plan in any form that ``Plan.of`` accepts, instead of ``codec``, ``algorithm``, and
        ``segment_nbytes``. If it is a file, every call reads the file. The plan's pipeline, bucket size, and
        residual have no effect here: ``tensor`` is one bucket, and no state is kept between calls.
    timeout_s
        The timeout of a wait for a peer; above 0, at most 1e6.

    Returns
    -------
    torch.Tensor
        ``tensor``.

    Raises
    ------
    SpecError
        For an invalid codec, algorithm, segment size, plan, or timeout, and for a plan passed together with a
        codec, an algorithm, or a segment size.
    TensorError
        For a tensor that can't be exchanged; nothing was sent or changed.
    ExchangeError
        If ``torch.distributed`` isn't initialised, this rank isn't in the group, or another thread is using
        the group. Also if a peer fails, or passes different arguments; the tensor is then partly summed, or
        unchanged if it had to be copied. Before you continue, call a barrier on all ranks, so that they start
        the next call together.
    """
    check_in_place(tensor, "all_reduce")
    if not isinstance(average, bool):
        raise SpecError(f"average: expected True or False, got {shown(average)}; pass False for the sum")
    chosen = _choose(plan, codec, algorithm, segment_nbytes)
    check_timeout(timeout_s)
    group = member_group(group, "call all_reduce")
    with _alone_in(group):
        members = _members.setdefault(group, {})
        if chosen.tos not in members:
            members[chosen.tos] = _Member(group, timeout_s, chosen.tos)
        staged = Staged(tensor, staging=Staging(chosen.encodes_on_device))
        torch.autograd.graph.increment_version(tensor)  # kernels write its memory without torch
        try:
            with staged.stream.current:
                members[chosen.tos].exchange(chosen).all_reduce(staged.floats(), average, timeout_s=timeout_s)
        except BaseException:
            del members[chosen.tos]  # the link is closed; the next call opens a new link
            raise
        staged.store().order()
    return tensor


def _choose(
    plan: PlanLike, codec: str | Codec | None, algorithm: str | None, segment_nbytes: int | None
) -> Plan:
    """Return ``plan``, or a plan made of the other arguments if ``plan`` is None. Raises ``SpecError``."""
    parts: dict[str, Any] = {"algorithm": algorithm, "segment_nbytes": segment_nbytes}
    given = {name: part for name, part in parts.items() if part is not None}
    if plan is None:
        return Plan.of(codec_of(codec), **given)
    if names := [name for name, part in {"codec": codec, **parts}.items() if part is not None]:
        parts_given = " and ".join(names)
        raise SpecError(
            f"expected a plan or separate settings, got a plan and {parts_given}; omit the plan or "
            f"{parts_given}"
        )
    return Plan.of(plan).for_whole_gradients("all_reduce").for_one_codec("all_reduce")


@contextmanager
def _alone_in(group: dist.ProcessGroup) -> Iterator[None]:
    """Refuse a call while another thread uses the group, because ranks may order such calls differently."""
    with _in_use_lock:
        if group in _in_use:
            raise ExchangeError(
                f"rank {dist.get_rank()}: another thread is in all_reduce with this group; call all_reduce "
                "from one thread at a time, or create a group for each thread with new_group"
            )
        _in_use.add(group)
    try:
        yield
    finally:
        with _in_use_lock:
            _in_use.discard(group)
