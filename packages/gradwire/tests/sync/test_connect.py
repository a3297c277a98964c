"""The group of a front end: which timeouts, groups and ranks are refused, and with which advice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire.errors import AttachError, ExchangeError, SpecError
from gradwire.sync.group import check_initialised, check_timeout, connect, member_group


@pytest.fixture
def world() -> Iterator[Any]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_timeout_is_a_number_of_seconds_above_0() -> None:
    for fine in (0.001, 1, 1e6):
        check_timeout(fine)
    wrong: list[Any] = [0, -1, 2e6, math.nan, True, "1", None]
    for each in wrong:
        with pytest.raises(SpecError, match=r"^expected begin_timeout_s above 0 and at most 1e\+06 s"):
            check_timeout(each, "begin_timeout_s")


def test_without_torch_distributed_there_is_no_group() -> None:
    with pytest.raises(AttachError, match=r"init_process_group first, or pass a Link$"):
        check_initialised(AttachError, ", or pass a Link")
    with pytest.raises(ExchangeError, match=r"torch\.distributed is not initialised"):
        member_group(None, "call it")


def test_the_default_group_is_the_world(world: Any) -> None:
    assert member_group(None, "call it") is world
    assert member_group(world, "call it") is world


def test_what_is_no_group_of_this_rank_is_refused(world: Any) -> None:
    other: Any = "world"
    with pytest.raises(ExchangeError, match=r"expected a group of torch\.distributed, got 'world'"):
        member_group(other, "call it")
    absent: Any = dist.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(ExchangeError, match="rank 0 is not in the group; call it on the group's ranks only"):
        member_group(absent, "call it")
    assert world is dist.group.WORLD


def test_the_members_of_a_group_are_connected(world: Any) -> None:
    link = connect(world, 5.0, AttachError, "; did a rank fail?")
    assert (link.rank, link.world, link.timeout_s) == (0, 1, 5.0)
    link.close()
