"""The units of a sharded model, in a world of which this process alone is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from gradwire.errors import AttachError
from gradwire.fsdp.sync_contexts import Purpose
from gradwire.fsdp.units import units_of

WORLD = 4


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A group of 4 whose collectives nobody answers: what is asked here needs none."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers the backend

    dist.init_process_group("fake", store=HashStore(), rank=1, world_size=WORLD)
    yield
    dist.destroy_process_group()


def mesh(*shape: int) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 3, bias=False), nn.Tanh()))


def test_units_are_in_the_order_of_the_modules_and_named_by_them() -> None:
    sharded = model()
    for each in (sharded[1][0], sharded[0], sharded):  # type: ignore[index]
        fully_shard(each, mesh=mesh(WORLD))
    assert [unit.name for unit in units_of(sharded)] == ["0", "1.0"], "the outermost has no parameters left"
    other = model()
    fully_shard(other[1], mesh=mesh(WORLD))
    fully_shard(other, mesh=mesh(WORLD))
    assert [unit.name for unit in units_of(other)] == ["root", "1"]
    assert [unit.mesh_ranks for unit in units_of(other)] == [[0, 1, 2, 3]] * 2


def test_the_outermost_gives_way_to_a_module_that_is_called_root() -> None:
    sharded = nn.Module()
    sharded.root, sharded.own = nn.Linear(4, 4), nn.Linear(4, 4)
    fully_shard(sharded.root, mesh=mesh(WORLD))
    fully_shard(sharded, mesh=mesh(WORLD))
    assert [unit.name for unit in units_of(sharded)] == [".root", "root"]


def test_modules_that_are_sharded_together_are_one_unit() -> None:
    sharded = model()
    fully_shard([sharded[0], sharded[1]], mesh=mesh(WORLD))
    (unit,) = units_of(sharded)
    assert unit.name == "0"
    layouts = unit.layouts(sharded)
    assert layouts.names == ("0.weight", "0.bias", "1.0.weight")


def test_shards_are_padded_to_equal_rows() -> None:
    """Among 4, 5 rows of 6 are 2 rows for each, 5 biases 2, and 3 rows of 5 one."""
    sharded = model()
    fully_shard(sharded, mesh=mesh(WORLD))
    (unit,) = units_of(sharded)
    layouts = unit.layouts(sharded)
    assert layouts.names == ("0.weight", "0.bias", "1.0.weight")
    assert layouts.counts == (12, 2, 5)
    sharded[0].bias.requires_grad_(False)
    assert unit.layouts(sharded).names == ("0.weight", "1.0.weight"), "of what is trained"


def test_a_mesh_of_two_dimensions_has_replicas_too() -> None:
    sharded = model()
    fully_shard(sharded, mesh=mesh(2, 2))
    (unit,) = units_of(sharded)
    groups = [(purpose, dist.get_process_group_ranks(group)) for purpose, group in unit.groups()]
    shards, replicas = [0, 1], [1, 3]  # of rank 1, whose mesh has the rows (0, 1) and (2, 3)
    assert groups == [
        (Purpose.GATHER, shards),
        (Purpose.SCATTER, shards),
        (Purpose.GATHER, shards),
        (Purpose.REPLICATE, replicas),
    ]


def test_a_shard_of_its_own_communicates_nothing() -> None:
    sharded = model()
    fully_shard(sharded, mesh=mesh(WORLD, 1))
    (unit,) = units_of(sharded)
    every = list(range(WORLD))
    groups = [(purpose, dist.get_process_group_ranks(group)) for purpose, group in unit.groups()]
    assert groups == [(Purpose.REPLICATE, every)]


def test_what_is_no_sharded_model_is_refused() -> None:
    with pytest.raises(AttachError, match="got a Sequential without sharded parameters"):
        units_of(model())
    with pytest.raises(AttachError, match=r"attach_fsdp: expected an nn\.Module, got list"):
        units_of([model()])  # type: ignore[arg-type]
    empty = nn.Sequential(nn.Tanh())
    fully_shard(empty, mesh=mesh(WORLD))
    with pytest.raises(AttachError, match="without sharded parameters"):
        units_of(empty)


def test_a_torch_without_the_extension_points_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FSDPModule, "set_custom_reduce_scatter")
    with pytest.raises(AttachError, match=r"needs FSDPModule\.set_custom_reduce_scatter, which torch 2"):
        units_of(model())
