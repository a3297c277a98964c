from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire.ddp.buckets import Bypasses
from gradwire.errors import GradwireError, TensorError
from gradwire.sync.ledger.ledger import Ledger
from support.fake_buckets import FakeBucket

Wait = Callable[[], object]


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _average(gradients: torch.Tensor, active: int | None = None) -> tuple[Any, list[Wait], Ledger]:
    ledger, waits = Ledger(0), list[Wait]()
    group: Any = dist.group.WORLD

    def raised(error: GradwireError) -> GradwireError:
        return error

    found = Bypasses(group, 0, ledger, raised).average(FakeBucket(0, gradients), active, 5.0, waits)
    for wait in waits:
        wait()
    return found, waits, ledger


def test_floats_are_for_the_exchange() -> None:
    found, waits, ledger = _average(torch.ones(4))
    assert found is None
    assert not waits
    assert not ledger.summary().bypasses


def test_other_dtypes_are_averaged_by_torch_over_the_active_ranks_and_counted() -> None:
    found, waits, ledger = _average(torch.full((4,), 6.0, dtype=torch.float64), active=3)
    assert found.wait().tolist() == [2.0] * 4
    assert len(waits) == 1
    assert len(ledger.summary().bypasses) == 1


def test_an_empty_bucket_is_done_at_once() -> None:
    found, _, _ = _average(torch.ones(0))
    assert found.wait().numel() == 0


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(TensorError, match="rank 0: bucket 0 holds sparse gradients"):
        _average(torch.ones(4).to_sparse())
