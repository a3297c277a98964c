"""Find the ``DistributedDataParallel`` inside a framework's model."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import AttachError


def ddp_inside(model: object, owner: str) -> DistributedDataParallel:
    """Return the DDP model that ``model`` is or contains, for example inside ``torch.compile``.

    Parameters
    ----------
    model
        The model that the framework trains.
    owner
        The name of the framework, for errors.

    Raises
    ------
    AttachError
        If there is none, because compression would silently not run, or if there are several.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    found = [module for module in modules if isinstance(module, DistributedDataParallel)]
    if len(found) == 1:
        return found[0]
    if found:
        raise AttachError(
            f"{owner} trains {len(found)} DistributedDataParallel models in one; call gradwire.attach for "
            "each"
        )
    raise AttachError(
        f"{owner} has no DistributedDataParallel around its {type(model).__name__}, so gradwire would not "
        f"run; {_way_out()}"
    )


def _way_out() -> str:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return "this is one process alone: start several, with torchrun, or leave gradwire out"
    return (
        "attach to what the framework has prepared, and let it use DDP, not FSDP or DeepSpeed (for FSDP2 "
        "there is gradwire.attach_fsdp); without GPUs it may want Accelerator(cpu=True) or "
        "TrainingArguments(use_cpu=True)"
    )
