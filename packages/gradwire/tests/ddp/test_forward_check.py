from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from gradwire.ddp.checks import AveragedParameters, CopiedCheck, ForwardCheck
from gradwire.errors import AttachError, ExchangeError


class FakeSync:
    steps_done, failed, calls = 0, False, 0

    def __init__(self) -> None:
        self.context = SimpleNamespace(is_over=False)

    def check(self) -> None:
        if self.failed:
            raise ExchangeError("it failed before")

    def exchange_now(self, what: str, _call: object) -> None:
        assert what == "a number in the named barrier"
        self.calls += 1


@pytest.fixture
def model() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    yield DistributedDataParallel(nn.Sequential(frozen, nn.Linear(4, 2)))
    dist.destroy_process_group()


@pytest.fixture
def sync() -> FakeSync:
    return FakeSync()


def test_a_failed_exchange_is_told_before_a_backward_pass_is_prepared(
    model: DistributedDataParallel, sync: Any
) -> None:
    check = ForwardCheck(sync, AveragedParameters(model))
    sync.failed = True
    with torch.no_grad():
        check(model, None)
    with model.no_sync():
        check(model, None)
    with pytest.raises(ExchangeError, match="it failed before"):
        check(model, None)


def test_what_ddp_does_not_average_must_stay_frozen(model: DistributedDataParallel, sync: Any) -> None:
    check = ForwardCheck(sync, AveragedParameters(model))
    check(model, None)
    model.module[0].requires_grad_(True)
    with pytest.raises(AttachError, match=r"0\.weight was unfrozen after DistributedDataParallel was"):
        check(model, None)


def test_ranks_meet_at_a_named_barrier_before_ddp_cuts_its_buckets_anew(
    model: DistributedDataParallel, sync: Any
) -> None:
    check = ForwardCheck(sync, AveragedParameters(model))
    check(model, None)
    assert sync.calls == 0, "no step is done"
    sync.steps_done = 1
    check(model, None)
    assert sync.calls == 1
    sync.context.is_over = True
    check(model, None)
    assert sync.calls == 1


def test_a_copy_leaves_it_behind(model: DistributedDataParallel, sync: Any) -> None:
    assert isinstance(copy.deepcopy(ForwardCheck(sync, AveragedParameters(model))), CopiedCheck)
