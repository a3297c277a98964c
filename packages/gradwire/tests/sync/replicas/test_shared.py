from __future__ import annotations

import torch
from torch import nn

from gradwire.sync.replicas.compare import own_parameters, shared_buffers, shared_parameters


class Model(nn.Module):
    def __init__(self, ignored: list[str]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.norm = nn.BatchNorm1d(2)
        self.tied = nn.Linear(2, 2)
        self.head = self.tied
        self.register_buffer("mask", torch.ones(3))
        self._ddp_params_and_buffers_to_ignore = ignored


def test_all_is_shared_where_nothing_is_said() -> None:
    model = Model([])
    assert [*map(id, shared_parameters(model))] == [*map(id, model.parameters())]
    assert own_parameters(model) == {}
    plain = nn.Linear(2, 2)
    assert [*map(id, shared_parameters(plain))] == [*map(id, plain.parameters())]


def test_what_ddp_ignores_is_each_ranks_own() -> None:
    model = Model([".scale", "norm.bias", "tied.weight", "norm.running_mean", "mask", "absent"])
    assert own_parameters(model).keys() == {"scale", "norm.bias", "tied.weight"}
    assert [*map(id, shared_parameters(model))] == [id(model.norm.weight), id(model.tied.bias)]
    buffers = shared_buffers(model, lambda _module, _name: True)
    assert [*map(id, buffers)] == [id(model.norm.running_var), id(model.norm.num_batches_tracked)]
    assert shared_buffers(model, lambda _module, name: name == "mask") == []
