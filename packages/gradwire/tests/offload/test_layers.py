from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError, TensorError
from gradwire.offload.layers import check_masters, check_optimizer, layers_of


def block() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1, bias=False))


def test_each_module_with_parameters_is_a_layer_and_blocks_are_one() -> None:
    model = nn.Sequential(block(), nn.ReLU(), block())
    replica = copy.deepcopy(model)
    layers = layers_of(model, replica)
    assert [each.name for each in layers] == ["0.0", "0.1", "0.2", "2.0", "2.1", "2.2"]
    assert [len(each.weights) for each in layers] == [1, 0, 1, 1, 0, 1]
    own = dict(replica.named_modules())
    assert [each.readers for each in layers] == [[own[each.name]] for each in layers]
    assert [each.name for each in layers_of(model, replica, ["2"])] == ["0.0", "0.1", "0.2", "2"]
    (_, whole) = layers_of(model, replica, ["0", "2"])
    assert whole.count == 12
    pairs = zip(whole.masters, whole.replicas, strict=True)
    assert all(own["2"].get_parameter(_name(model[2], a)) is b for a, b in pairs)


def _name(module: nn.Module, parameter: nn.Parameter) -> str:
    return next(name for name, each in module.named_parameters() if each is parameter)


def test_a_shared_parameter_belongs_to_its_first_module_and_is_read_by_all() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    replica = copy.deepcopy(model)
    (layer,) = layers_of(model, replica)
    assert (layer.name, layer.readers) == ("embed", [replica["embed"], replica["head"]])
    assert layer.replicas[0] is replica["head"].weight


def test_mistakes_are_one_sentence() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(SpecError, match="blocks: expected names of the model's modules, got 'layer1'"):
        layers_of(model, model, ["layer1"])
    with pytest.raises(TensorError, match="expected a model with parameters"):
        check_masters(nn.ReLU())
    with pytest.raises(TensorError, match=r"on the host, got weight on meta; pass the model before"):
        check_masters(nn.Linear(2, 2, device="meta"))
    with pytest.raises(
        TensorError, match=r"float32 master weights, got torch.bfloat16 for weight; pass model.float\(\)"
    ):
        check_masters(nn.Linear(2, 2, dtype=torch.bfloat16))
    with pytest.raises(SpecError, match=r"got one with a parameter of another model, of shape \(2, 2\)"):
        check_optimizer(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), model)
