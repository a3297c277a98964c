"""Hashes see every bit of weights and of an optimizer's state, and nothing that may differ between ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.sync.replicas.compare import (
    Hash,
    check_replicated,
    crc32c_of,
    optimizer_values,
    replica_hashes,
    sha256_of,
)

HASHES = pytest.mark.parametrize("hash_of", [crc32c_of, sha256_of])


def trained(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step(lambda: 0.0)
    return model, optimizer


@HASHES
def test_every_bit_counts_and_its_place(hash_of: Hash) -> None:
    whole: list[torch.Tensor | str] = [
        torch.tensor([1.0, 2.0]),
        "lr:",
        torch.tensor(3, dtype=torch.int64),
        torch.empty(0),
    ]
    first = hash_of(whole)
    assert hash_of([torch.tensor([[1.0], [2.0]]), "lr:", torch.tensor(3)]) == first
    assert hash_of([torch.tensor([2.0, 1.0]), *whole[1:]]) != first
    assert hash_of([torch.tensor([1.0, -0.0]), *whole[1:]]) != hash_of([torch.tensor([1.0, 0.0]), *whole[1:]])
    assert hash_of(whole[:1]) != hash_of(whole[:2])


@HASHES
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.LBFGS, {}),
        (torch.optim.Adafactor, {}),
    ],
)
def test_each_bit_of_an_optimizer_is_seen(hash_of: Hash, kind: Any, options: dict[str, Any]) -> None:
    model, optimizer = trained(kind, **options)
    _, other = trained(kind, **options)
    first = hash_of(optimizer_values(optimizer))
    assert hash_of(optimizer_values(other)) == first
    kept = [each for each in optimizer_values(optimizer) if isinstance(each, torch.Tensor) and each.numel()]
    assert kept
    for each in kept:
        bits = each.view(-1).view(torch.uint8)
        bits[0] ^= 1
        assert hash_of(optimizer_values(optimizer)) != first
        bits[0] ^= 1
    assert hash_of(optimizer_values(optimizer)) == first
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * (1 + 2**-50)
    assert hash_of(optimizer_values(optimizer)) != first
    assert model is not None


def test_switches_and_texts_do_not_count_and_numbers_in_a_state_do() -> None:
    _, optimizer = trained(torch.optim.AdamW)
    first = crc32c_of(optimizer_values(optimizer))
    optimizer.param_groups[0].update(foreach=True, name="all")
    assert crc32c_of(optimizer_values(optimizer)) == first
    optimizer.state["steps"] = {"taken": 1}
    second = crc32c_of(optimizer_values(optimizer))
    optimizer.state["steps"] = {"taken": 2}
    assert len({first, second, crc32c_of(optimizer_values(optimizer))}) == 3


def test_the_state_of_what_is_each_ranks_own_does_not_count() -> None:
    model, optimizer = trained(torch.optim.AdamW)
    model._ddp_params_and_buffers_to_ignore = ["bias"]
    first = replica_hashes(model, optimizer, sha256_of)
    optimizer.state[model.bias]["exp_avg"] += 1
    model.bias.data += 1
    assert replica_hashes(model, optimizer, sha256_of) == first
    optimizer.state[model.weight]["exp_avg"] += 1
    second = replica_hashes(model, optimizer, sha256_of)
    assert second["weights"] == first["weights"]
    assert second["optimizer states"] != first["optimizer states"]
    assert replica_hashes(model, None, sha256_of)["optimizer states"] != second["optimizer states"]
    assert replica_hashes(copy.deepcopy(model), None, crc32c_of)["weights"] == crc32c_of([model.weight])


def test_what_replicas_cannot_compare_is_refused() -> None:
    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    check_replicated(torch.optim.SGD([torch.ones(1, requires_grad=True)]))
    with pytest.raises(SpecError, match="divided among the ranks"):
        check_replicated(ZeroRedundancyOptimizer([torch.ones(1, requires_grad=True)]))
    with pytest.raises(SpecError, match=r"expected an optimizer of torch\.optim, got 3"):
        check_replicated(3)


@HASHES
def test_memory_of_any_layout_is_hashed_as_its_values(hash_of: Hash) -> None:
    whole = torch.arange(10.0)
    turned = torch.tensor([1 + 2j, 3 - 1j])
    for each in (whole[::5][:1], whole[::2], whole.view(2, 5).t(), turned.conj(), turned.conj().imag):
        copied = torch.tensor(each.tolist(), dtype=each.dtype)
        assert hash_of([each]) == hash_of([copied])
