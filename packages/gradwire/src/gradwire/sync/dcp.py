"""Reading all ranks' states from a checkpoint of ``torch.distributed``, for a world of a different size."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from gradwire.deferred import outside_inference
from gradwire.errors import StateError
from gradwire.sync.checkpoint import IN_FLIGHT, State, entries_in


@outside_inference
def read_ranks(folder: str | os.PathLike[str], key: str) -> list[State]:
    """Read the states of all ranks, of a method or of ``attach``'s handle, from a folder of ``dcp.save``.

    If ``torch.distributed`` is initialised, all its processes call this together. Every process reads the
    residuals of all ranks, and one copy of the gradients in flight.

    Parameters
    ----------
    folder
        The ``checkpoint_id`` of ``dcp.save``, a folder.
    key
        The key of the method or handle in the dictionary that was passed to ``dcp.save``: ``"pipe"`` for
        ``dcp.save({"pipe": pipe, ...})``.

    Returns
    -------
    list
        The states in rank order, for ``load_state_dict``, or for ``gradwire.redivide``.

    Raises
    ------
    StateError
        If the checkpoint cannot be read, or has no state under this key.
    """
    with _readable(folder):
        stored = FileSystemReader(folder).read_metadata().state_dict_metadata
        template: dict[str, Any] = {
            name.removeprefix(f"{key}."): _room(entry)
            for name, entry in stored.items()
            if name.startswith(f"{key}.gradwire/")
        }
    ranks = [rank for rank, _ in entries_in(template)]
    if not ranks:
        raise StateError(
            f"expected a state of gradwire under {key!r} in {folder}, got none; pass the state's key in the "
            "dictionary that dcp.save saved"
        )
    with warnings.catch_warnings(), _readable(folder):
        # One process without torch.distributed may read the states of all ranks.
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")
        load({key: template}, checkpoint_id=folder)
    return [
        {name: template[name] for name in template if name.startswith((f"gradwire/rank{rank}/", IN_FLIGHT))}
        for rank in ranks
    ]


@contextmanager
def _readable(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Raise ``StateError`` for any error in the ``with`` block, such as invalid sizes and types."""
    try:
        yield
    except (Exception, CheckpointException) as error:  # a CheckpointException is not an Exception
        lines = str(error).strip().splitlines() or [type(error).__name__]  # begins with torch's traceback
        raise StateError(
            f"the checkpoint {os.fspath(folder)} cannot be read: {lines[-1]}; pass a folder that dcp.save "
            "has written completely"
        ) from error


def _room(entry: object) -> torch.Tensor | str:
    """Return a tensor of the stored shape for ``dcp.load`` to fill, or a placeholder for a string."""
    if isinstance(entry, TensorStorageMetadata):
        return torch.empty(entry.size, dtype=entry.properties.dtype)
    return ""
