"""Connections between the members of a ``torch.distributed`` group, for every front end."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from gradwire.codecs.spec import is_real
from gradwire.errors import ExchangeError, GradwireError, LinkError, SpecError, shown
from gradwire.links.process_group import ProcessGroupLink, store_of

_LONGEST_TIMEOUT_S = 1e6


def check_timeout(timeout_s: float, name: str = "timeout_s") -> None:
    """Raise ``SpecError`` unless ``timeout_s`` is a valid timeout; ``name`` is the argument's name."""
    if not is_real(timeout_s, 0.0, _LONGEST_TIMEOUT_S) or timeout_s == 0:
        raise SpecError(
            f"expected {name} above 0 and at most {_LONGEST_TIMEOUT_S:g} seconds, got {shown(timeout_s)}"
        )


def check_initialised(kind: type[GradwireError] = ExchangeError, otherwise: str = "") -> None:
    """Raise ``kind`` unless ``torch.distributed`` is initialised; ``otherwise`` is a second remedy."""
    if not dist.is_available() or not dist.is_initialized():
        raise kind(
            "torch.distributed is not initialised; call torch.distributed.init_process_group first"
            f"{otherwise}"
        )


def member_group(group: dist.ProcessGroup | None, doing: str, otherwise: str = "") -> dist.ProcessGroup:
    """Return ``group``, or the world for None; ``doing`` is the imperative that errors use.

    Raises ``ExchangeError`` if this process is not in the group, or ``torch.distributed`` is not initialised.
    """
    check_initialised(otherwise=otherwise)
    chosen: object = dist.group.WORLD if group is None else group
    if isinstance(chosen, dist.ProcessGroup):
        try:
            if dist.get_rank(chosen) >= 0:
                return chosen
        except ValueError as error:
            raise ExchangeError(
                f"rank {dist.get_rank()}: this group has been destroyed; make a new one with new_group"
            ) from error
    elif chosen != dist.GroupMember.NON_GROUP_MEMBER:  # the result of new_group on other ranks
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
) -> ProcessGroupLink:
    """Return a new link between the members of ``group``, in the order of ``ranks``; ``tos`` is the plan's.

    Raises ``kind``; if members are absent, its text ends with ``ending``.
    """
    try:
        store_of(group)
    except LinkError as error:
        raise kind(str(error)) from error
    try:
        return ProcessGroupLink(group, ranks, timeout_s, tos)
    except LinkError as error:
        raise kind(f"{error}{ending}") from error
