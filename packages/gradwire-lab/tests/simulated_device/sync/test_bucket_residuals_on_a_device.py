from __future__ import annotations

import torch

from gradwire.devices import CPU, on_host
from gradwire.sync.bucket.error_feedback import BucketResiduals
from gradwire_lab.simulated_device.simulated import Simulated
from sync.bucket.test_bucket_residuals import add_one


def test_on_a_device_they_are_lent_and_kept_as_on_the_host() -> None:
    device, nothing = Simulated(), torch.zeros(3)
    gradient = torch.cat([torch.tensor([0.0, 2.0]), nothing, torch.tensor([torch.nan, 0.0]), -nothing])
    found = []
    for owner in (device, None):
        residuals, values = [torch.full((n,), 1.5) for n in (2, 3, 2, 3)], gradient.clone()
        if owner is not None:
            values, residuals = owner.own(values), [owner.own(each) for each in residuals]
        together = BucketResiduals(residuals)
        seen = add_one(together.lend(values), owner or CPU).tolist()
        together.note(values, torch.float32)
        together.keep()
        found.append((seen, [on_host(each).tolist() for each in residuals], together.usable))
    assert found[0] == found[1]
    assert found[0] == ([1.5, 1.5, 0, 0, 0, 1.5, 1.5, 0, 0, 0], [[2.5] * n for n in (2, 3, 2, 3)], False)


def test_a_sum_that_overflows_when_it_is_rounded_is_seen_on_a_device() -> None:
    values = Simulated().own(torch.tensor([1.0, 1e30]))
    together = BucketResiduals([Simulated().zeros(2)])
    together.lend(values)
    together.note(values, torch.bfloat16)
    assert together.usable
    together.note(values, torch.float16)
    assert not together.usable
