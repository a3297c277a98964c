"""A model on DistributedDataParallel in a world of one, without a port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def model() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(nn.Linear(4, 2))
    dist.destroy_process_group()
