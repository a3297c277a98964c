"""The FSDP modules of a model: what each communicates with, and whom.

Here alone are names of FSDP2 that its documentation does not promise: those of the groups behind a mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gradwire.errors import AttachError
from gradwire.fsdp.comms import GatherWeights, ReplicaGroup, ScatterGradients
from gradwire.fsdp.groups import Purpose, UnitLayouts
from gradwire.sync.trained import REPLICATE, is_replicated

_POINTS = ("set_custom_all_gather", "set_custom_reduce_scatter")


@dataclass(frozen=True)
class Unit:
    """The parameters that one call of ``fully_shard`` made a group of, and which travel together."""

    name: str
    module: Any
    """An ``FSDPModule``; which collectives it takes its annotations do not say."""
    parameters: Any
    """FSDP's own object for the group."""

    @property
    def all_gather(self) -> Any:
        """What gathers the weights now."""
        return self.parameters._all_gather_comm

    @property
    def reduce_scatter(self) -> Any:
        """What scatters the gradients now."""
        return self.parameters._reduce_scatter_comm

    @property
    def stays_whole(self) -> bool:
        """Whether the weights that are gathered for forward stay for backward."""
        return self.parameters.post_forward_mesh_info is None

    @property
    def replica_group(self) -> dist.ProcessGroup | None:
        """The group of the ranks with the same shard on a mesh of two dimensions, else None."""
        group: dist.ProcessGroup | None = getattr(self.parameters.mesh_info, "replicate_process_group", None)
        return group

    def set_replica_group(self, group: dist.ProcessGroup) -> None:
        """Let FSDP all-reduce between replicas on this group."""
        self.parameters.mesh_info.replicate_process_group = group

    def layouts(self, root: nn.Module) -> UnitLayouts:
        """Return where the unit's parameters lie in what it reduces, named as ``root`` names them."""
        modules = {each: f"{name}." if name else "" for name, each in root.named_modules()}
        trained = [each for each in self.parameters.fsdp_params if each.sharded_param.requires_grad]
        infos = [each._module_info for each in trained]
        names = tuple(f"{modules.get(info.module, f'{self.name}.')}{info.param_name}" for info in infos)
        shapes = tuple(tuple(each.padded_sharded_param_size) for each in trained)
        return UnitLayouts(self.name, names, shapes)

    def groups(self) -> Iterator[tuple[Purpose, dist.ProcessGroup]]:
        """Yield the groups that the module communicates in, in an order that all ranks share."""
        mesh, later = self.parameters.mesh_info, self.parameters.post_forward_mesh_info
        shards = getattr(mesh, "shard_process_group", None)
        if shards is not None and shards.size() > 1:  # alone, FSDP communicates nothing
            yield Purpose.GATHER, shards
            yield Purpose.SCATTER, self._scatter_group(shards)
            regathered = getattr(later, "shard_process_group", shards)
            if regathered.size() > 1:
                yield Purpose.GATHER, regathered
        if self.replica_group is not None:
            yield Purpose.REPLICATE, self.replica_group

    def reductions(self) -> Iterator[tuple[Purpose, dist.ProcessGroup]]:
        """Yield the groups that gradients are summed over, one after the other."""
        mesh = self.parameters.mesh_info
        shards = getattr(mesh, "shard_process_group", None)
        if shards is not None and shards.size() > 1:
            yield Purpose.SCATTER, self._scatter_group(shards)
        if self.replica_group is not None:
            group = self.replica_group
            yield Purpose.REPLICATE, group.before if isinstance(group, ReplicaGroup) else group

    def _scatter_group(self, shards: dist.ProcessGroup) -> dist.ProcessGroup:
        own = getattr(self.parameters.mesh_info, "reduce_scatter_process_group", None)
        return own or shards

    @property
    def mesh_ranks(self) -> list[int]:
        """The ranks of the mesh that the unit is on."""
        ranks: list[int] = self.parameters.mesh_info.mesh.mesh.flatten().tolist()
        return ranks


def units_of(module: nn.Module) -> list[Unit]:
    """Return the units within a module, in the order of its modules. Raises ``AttachError``."""
    lacking = [point for point in _POINTS if not hasattr(FSDPModule, point)]
    if lacking:
        raise AttachError(
            f"attach_fsdp needs FSDPModule.{' and '.join(lacking)}, which torch {torch.__version__} has not; "
            "install a newer torch"
        )
    if not isinstance(module, nn.Module):
        raise AttachError(f"attach_fsdp wants a module, but got a {type(module).__name__}")
    units = list(_units(module))
    if is_replicated(module):
        raise AttachError(
            f"attach_fsdp wants a module that fully_shard has sharded, but {REPLICATE} has changed this one; "
            "leave replicate out, and call fully_shard, or DistributedDataParallel and gradwire.attach"
        )
    if not units:
        raise AttachError(
            f"attach_fsdp wants a module that torch.distributed.fsdp.fully_shard has sharded, but this "
            f"{type(module).__name__} has no FSDPModule with parameters in it; call fully_shard first"
        )
    for unit in units:
        _check_free(unit)
    return units


def _units(module: nn.Module) -> Iterator[Unit]:
    seen = set[int]()
    root = _name_of_root(module)
    for name, each in module.named_modules():
        if not isinstance(each, FSDPModule):
            continue
        groups = _parameter_groups(each, name or root)
        if len(groups) > 1:
            raise AttachError(
                f"the module {name or root!r} shards its parameters over several meshes, for which FSDP "
                "takes no custom collectives; use one mesh for each module"
            )
        for group in groups:
            if id(group) not in seen:  # modules that are sharded together share it
                seen.add(id(group))
                yield Unit(name or root, each, group)


def _name_of_root(module: nn.Module) -> str:
    """Return what the outermost module is called, which has no name of its own: as no module within is."""
    taken = isinstance(dict(module.named_modules()).get("root"), FSDPModule)
    return ".root" if taken else "root"  # torch lets no name begin with a dot


def _parameter_groups(module: FSDPModule, name: str) -> list[Any]:
    state: Any = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    if hasattr(state, "_fsdp_param_group"):
        return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    raise AttachError(
        f"attach_fsdp does not find the parameters of the FSDP module {name!r} in torch {torch.__version__}; "
        "use a version of torch that gradwire is tested with"
    )


def _check_free(unit: Unit) -> None:
    taken = (
        isinstance(unit.all_gather, GatherWeights)
        or isinstance(unit.reduce_scatter, ScatterGradients)
        or isinstance(unit.replica_group, ReplicaGroup)
    )
    if taken:
        raise AttachError(
            f"the module {unit.name!r} is attached already; close what attach_fsdp returned first"
        )
