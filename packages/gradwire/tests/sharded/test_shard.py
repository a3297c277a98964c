from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.sharded import Shard, check_shardable


def test_the_optimizer_gets_the_slices_of_its_own_groups() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))  # 6 + 2 + 2 + 1 weights
    weights, biases = [model[0].weight, model[1].weight], [model[0].bias, model[1].bias]
    optimizer = torch.optim.Adam([{"params": weights, "lr": 0.1}, {"params": biases, "lr": 0.2}])
    shard = Shard(list(model.parameters()), optimizer, 4, 9)
    assert [[each.numel() for each in group["params"]] for group in optimizer.param_groups] == [[2, 1], [2]]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    shard.give(torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0]), absent={1})
    optimizer.step()
    torch.testing.assert_close(shard.masters, torch.tensor([-0.1, 0.1, 0.0, 0.0, -0.1]))
    assert sum(each["exp_avg"].numel() for each in optimizer.state.values()) == 3


def test_a_shard_may_be_empty() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Shard(list(model.parameters()), optimizer, 0, 0).give(torch.empty(0), ())
    optimizer.step()


def test_what_cannot_be_divided_is_refused() -> None:
    model = nn.Linear(2, 2)
    parameters = list(model.parameters())
    with pytest.raises(SpecError, match=r"elementwise optimizer \(ASGD, .*\), got LBFGS;"):
        check_shardable(torch.optim.LBFGS(parameters), parameters)
    optimizer = torch.optim.Adam(parameters)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(SpecError, match="got one that has stepped"):
        check_shardable(optimizer, parameters)
    with pytest.raises(SpecError, match="got one with other parameters"):
        check_shardable(torch.optim.SGD([*parameters, nn.Parameter(torch.ones(1))], lr=0.1), parameters)
