"""What DDP waits for: a future of the kind that its bucket's device has."""

from __future__ import annotations

import pytest
import torch

from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.bucket.work import BucketWork, GradientBucket
from gradwire.sync.context import SyncContext
from gradwire_lab.simulated_device.simulated import Simulated


def awaited(bucket: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    context = SyncContext(Exchange(loopback(1)[0], Plan()))
    return BucketWork(context, GradientBucket(0, bucket, wants_future=True), 1).get_future()


def test_the_future_of_a_bucket_in_host_memory_is_torchs_own() -> None:
    bucket = torch.ones(3)
    averaged = awaited(bucket)
    assert type(averaged) is torch.futures.Future
    assert not averaged.done()
    averaged.set_result(bucket)
    assert averaged.wait() is bucket


def test_the_future_of_a_simulated_device_includes_what_its_stream_still_has_to_do() -> None:
    device = Simulated()
    bucket, host = device.own(torch.zeros(3)), torch.full((3,), 7.0)
    averaged, stream = awaited(bucket), device.stream()
    stream.store(bucket, host)
    assert bucket.isnan().all(), "not yet"
    stream.complete(averaged, bucket)
    assert averaged.wait().tolist() == [7.0] * 3


def test_an_accelerator_that_torch_has_not_is_torchs_to_refuse() -> None:
    with pytest.raises((RuntimeError, ValueError)):
        awaited(torch.empty(3, device="meta"))
