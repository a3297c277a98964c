"""The units of a sharded model. Only this module uses undocumented names of FSDP2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gradwire.errors import AttachError
from gradwire.fsdp.sync_contexts import Purpose
from gradwire.sync.layout import Layout
from gradwire.sync.trained import REPLICATE, is_replicated

_POINTS = ("set_custom_all_gather", "set_custom_reduce_scatter")
_AMONG_REPLICAS = " among replicas"


@dataclass(frozen=True)
class UnitLayouts:
    """The layouts of one unit's buckets. A ``LossyWarning`` covers all parameters of a unit.

    A scattered bucket consists of every rank's shards of all parameters, padded to the same length. Between
    replicas, FSDP reduces the shards of one rank. ``shapes`` are the shapes of one rank's shards, with
    padding. FSDP omits parameters without a gradient and does not name the omitted parameters. The encoding
    error of a bucket without these parameters is measured as a whole.
    """

    unit: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of floats in each shard."""
        return tuple(map(math.prod, self.shapes))

    def scattered(self, count: int, world: int) -> Layout:
        """Return the layout of a bucket of ``count`` floats, scattered over ``world`` ranks."""
        return _layout_of(self, count, world, "")

    def replicated(self, count: int) -> Layout:
        """Return the layout of a bucket of ``count`` floats, reduced between replicas."""
        return _layout_of(self, count, 1, _AMONG_REPLICAS)

    def all_names(self) -> list[str]:
        """Return every parameter name that a layout may contain."""
        every = [*self.names, self._rest]
        return [*every, *(name + _AMONG_REPLICAS for name in every)]

    @property
    def _rest(self) -> str:
        return f"{self.unit} (some of its parameters)"


@lru_cache(maxsize=1024)  # backward passes reuse the layouts and their memory for norms
def _layout_of(layouts: UnitLayouts, count: int, copies: int, ending: str) -> Layout:
    if sum(layouts.counts) * copies != count:
        return Layout((layouts._rest + ending,), (count,), (layouts.unit,))
    names = tuple(name + ending for name in layouts.names)
    return Layout(names, layouts.counts, (layouts.unit,) * len(names), copies)


@dataclass(frozen=True)
class Unit:
    """The parameters that one call of ``fully_shard`` grouped. FSDP communicates them together."""

    name: str
    module: Any  # an ``FSDPModule``; torch's annotations lack custom collectives
    parameters: Any  # FSDP's object for the parameters

    @property
    def all_gather(self) -> Any:
        """The object with which FSDP gathers the weights."""
        return self.parameters._all_gather_comm

    @property
    def reduce_scatter(self) -> Any:
        """The object with which FSDP scatters the gradients."""
        return self.parameters._reduce_scatter_comm

    @property
    def stays_whole(self) -> bool:
        """Whether weights gathered for the forward pass are kept for the backward pass."""
        return self.parameters.post_forward_mesh_info is None

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """The group of ranks over which the parameters are sharded, or None if they are not sharded."""
        group: dist.ProcessGroup | None = getattr(self.parameters.mesh_info, "shard_process_group", None)
        return group

    @property
    def replica_group(self) -> dist.ProcessGroup | None:
        """The group of ranks with the same shard on a two-dimensional mesh, else None."""
        group: dist.ProcessGroup | None = getattr(self.parameters.mesh_info, "replicate_process_group", None)
        return group

    def set_replica_group(self, group: dist.ProcessGroup) -> None:
        """Set the group for FSDP's all-reduce between replicas."""
        self.parameters.mesh_info.replicate_process_group = group

    @property
    def mesh_ranks(self) -> list[int]:
        """The ranks of the unit's mesh."""
        ranks: list[int] = self.parameters.mesh_info.mesh.mesh.flatten().tolist()
        return ranks

    @property
    def is_on_world(self) -> bool:
        """Whether the unit's mesh contains all ranks."""
        return len(self.mesh_ranks) == dist.get_world_size()

    @property
    def is_over_all(self) -> bool:
        """Whether the unit is sharded over all ranks, on a one-dimensional mesh."""
        return self.replica_group is None and self.is_on_world

    def layouts(self, root: nn.Module) -> UnitLayouts:
        """Return the layouts of the unit's buckets, with parameter names relative to ``root``."""
        modules = {each: f"{name}." if name else "" for name, each in root.named_modules()}
        trained = [each for each in self.parameters.fsdp_params if each.sharded_param.requires_grad]
        infos = [each._module_info for each in trained]
        names = tuple(f"{modules.get(info.module, f'{self.name}.')}{info.param_name}" for info in infos)
        shapes = tuple(tuple(each.padded_sharded_param_size) for each in trained)
        return UnitLayouts(self.name, names, shapes)

    def groups(self) -> Iterator[tuple[Purpose, dist.ProcessGroup]]:
        """Yield the groups that the unit communicates in, in an order that all ranks share."""
        mesh, later = self.parameters.mesh_info, self.parameters.post_forward_mesh_info
        shards = self.shard_group
        if shards is not None and shards.size() > 1:  # FSDP doesn't communicate on a single rank
            yield Purpose.GATHER, shards
            yield Purpose.SCATTER, getattr(mesh, "reduce_scatter_process_group", None) or shards
            regathered = getattr(later, "shard_process_group", shards)
            if regathered.size() > 1:
                yield Purpose.GATHER, regathered
        if self.replica_group is not None:
            yield Purpose.REPLICATE, self.replica_group


def world_group() -> dist.ProcessGroup:
    """Return the process group of all ranks, which ``fully_shard`` requires."""
    group = dist.group.WORLD
    assert group is not None, "fully_shard requires it"
    return group


def units_of(module: nn.Module) -> list[Unit]:
    """Return the units within ``module``, in the order of ``module.modules()``. Raises ``AttachError``."""
    if lacking := [point for point in _POINTS if not hasattr(FSDPModule, point)]:
        raise AttachError(
            f"attach_fsdp needs FSDPModule.{' and '.join(lacking)}, which torch {torch.__version__} does not "
            "have; install a newer torch"
        )
    if not isinstance(module, nn.Module):
        raise AttachError(
            f"attach_fsdp: expected an nn.Module, got {type(module).__name__}; pass the model that "
            "fully_shard has sharded"
        )
    units = list(_units(module))
    if is_replicated(module):
        raise AttachError(
            f"attach_fsdp: expected a module sharded by fully_shard, got a module of {REPLICATE}; "
            "replace replicate with fully_shard, or use DistributedDataParallel and gradwire.attach"
        )
    if not units:
        raise AttachError(
            "attach_fsdp: expected a module sharded by torch.distributed.fsdp.fully_shard, got a "
            f"{type(module).__name__} without sharded parameters; call fully_shard first"
        )
    return units


def _units(module: nn.Module) -> Iterator[Unit]:
    seen = set[int]()
    modules = dict(module.named_modules())
    # Names of modules don't begin with a dot, so this name is unique even if a child is named root.
    root = ".root" if isinstance(modules.get("root"), FSDPModule) else "root"
    for name, each in modules.items():
        if not isinstance(each, FSDPModule):
            continue
        groups = _parameter_groups(each, name or root)
        if len(groups) > 1:
            raise AttachError(
                f"attach_fsdp: expected one mesh per module, got several in {name or root!r}; use one mesh "
                "for each module"
            )
        for group in groups:
            if id(group) not in seen:  # modules that are sharded together share a group
                seen.add(id(group))
                yield Unit(name or root, each, group)


def _parameter_groups(module: FSDPModule, name: str) -> list[Any]:
    state: Any = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    if hasattr(state, "_fsdp_param_group"):
        return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    raise AttachError(
        f"attach_fsdp cannot find the parameters of the FSDP module {name!r} in torch {torch.__version__}; "
        "install the version of torch in gradwire's constraints.txt"
    )
