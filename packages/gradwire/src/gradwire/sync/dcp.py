"""Read what all ranks saved with ``torch.distributed.checkpoint``, for a world of another size."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from gradwire.deferred import outside_inference
from gradwire.errors import StateError
from gradwire.sync.checkpoint import IN_FLIGHT, State, ranks_in


@outside_inference
def read_ranks(folder: str | os.PathLike[str], key: str) -> list[State]:
    """Return the state of every rank that saved a ``gradwire.PipeSGD`` with ``dcp.save``.

    Where ``torch.distributed`` is initialised all its processes call this together, and each of them reads
    everything: the residuals of all ranks, and the gradients in flight once.

    Parameters
    ----------
    folder
        The ``checkpoint_id`` of ``dcp.save``, a folder.
    key
        Under which name the pipeline was saved: ``"pipe"`` for ``dcp.save({"pipe": pipe, ...})``.

    Returns
    -------
    list
        The states in the order of the ranks, for ``checkpoint.redivide``.

    Raises
    ------
    StateError
        When the checkpoint cannot be read, or holds no pipeline under this name.
    """
    stored = _metadata(folder)
    try:
        template: dict[str, Any] = {
            name.removeprefix(f"{key}."): _room(entry)
            for name, entry in stored.items()
            if name.startswith(f"{key}.gradwire/")
        }
    except Exception as error:  # sizes and types that nothing can have
        raise _unreadable(folder, error) from error
    ranks = ranks_in(template)
    if not ranks:
        raise StateError(
            f"{folder} holds no state of a PipeSGD under the name {key!r}; what was it called in dcp.save?"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")  # no ranks, no news
        try:
            load({key: template}, checkpoint_id=folder)
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            raise _unreadable(folder, error) from error
    return [
        {name: template[name] for name in template if name.startswith((f"gradwire/rank{rank}/", IN_FLIGHT))}
        for rank in ranks
    ]


def _metadata(folder: str | os.PathLike[str]) -> Mapping[str, object]:
    """Return the entries of a checkpoint, by their names."""
    try:
        return FileSystemReader(folder).read_metadata().state_dict_metadata
    except (Exception, CheckpointException) as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: str | os.PathLike[str], error: BaseException) -> StateError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[
        -1
    ]  # torch puts a traceback before it
    return StateError(
        f"the checkpoint {os.fspath(folder)} cannot be read: {reason}; name a folder that dcp.save has "
        "written whole"
    )


def _room(entry: object) -> torch.Tensor | str:
    """Return a tensor of the stored shape for ``dcp.load`` to fill, or a placeholder for a text."""
    if isinstance(entry, TensorStorageMetadata):
        return torch.empty(entry.size, dtype=entry.properties.dtype)
    return ""
