"""Each rank's residuals in its own file, beside the checkpoint that a framework writes once for all ranks.

Frameworks save the state of rank 0. Residuals differ from rank to rank, so each rank writes a file whose name
and content identify the rank, and no rank can load another's file by mistake.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gradwire.checkpoints import check_summed, save_checkpoint
from gradwire.checksum import check_sealed
from gradwire.errors import StateError
from gradwire.fields import Source, mapping, optional, whole
from gradwire.training.gradients.residual import redivide

_NAME = re.compile(r"gradwire(?P<key>.*)-rank\d+-of-(?P<world>\d+)\.pt")


def file_name(rank: int, world: int, key: str = "") -> str:
    """Return the name of a rank's file; ``key`` tells several models apart."""
    return f"gradwire{key}-rank{rank}-of-{world}.pt"


def adopted(
    rank: int, world: int, saved_world: int, read: Callable[[int], Mapping[str, Any]], step: int | None
) -> Mapping[str, Any]:
    """Return the residuals that this rank starts with, from the states of ``saved_world`` ranks.

    Raises ``StateError`` if a rank's file is missing, damaged, or (unless ``step`` is None) of another step.
    """
    if saved_world == world:
        return _residuals(read, rank, step)
    return redivide([_residuals(read, each, step) for each in range(saved_world)], world)[rank]


def _residuals(read: Callable[[int], Mapping[str, Any]], rank: int, step: int | None) -> Mapping[str, Any]:
    try:
        record = read(rank)
    except Exception as error:  # what a damaged file raises is torch's to choose
        raise StateError(
            f"the residuals that rank {rank} saved cannot be read: {_first_line(error)}; "
            "keep the files gradwire-rank*.pt with their checkpoint, where all ranks can read them"
        ) from error
    what = f"the residuals that rank {rank} saved"
    given = Source(what, "resume from a checkpoint that was written whole", StateError).fields(record)
    saved_step, residuals = given.get("step", optional(whole())), given.get("residuals", mapping)
    check_sealed(record, what)
    if step is not None and saved_step != step:
        raise StateError(
            f"the checkpoint is of step {step}, but the residuals that rank {rank} saved with it are of step "
            f"{saved_step}; resume from a checkpoint that was written whole"
        )
    return residuals


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class ResidualFolder:
    """The files of all ranks in the folder of a checkpoint; ``key`` tells several models apart."""

    def __init__(self, folder: str | os.PathLike[str], key: str = "") -> None:
        self.folder = Path(folder)
        self._key = key

    def write(self, record: Mapping[str, Any], rank: int, world: int) -> None:
        """Write this rank's file, whole or not at all; rank 0 removes the files of another world size."""
        save_checkpoint(self.folder / file_name(rank, world, self._key), record)
        if rank == 0:
            for other, files in self._worlds().items():
                if other != world:
                    for each in files:
                        each.unlink(missing_ok=True)

    def saved_world(self, world: int) -> int:
        """Return the number of ranks that wrote the files. Raises ``StateError`` if it is ambiguous."""
        found = sorted(self._worlds())
        if world in found:
            return world
        if len(found) == 1:
            return found[0]
        what = f"those of {found} ranks" if found else "none"
        raise StateError(
            f"this plan keeps residuals, but of those that each rank saved with the checkpoint {self.folder} "
            f"there are {what}; name the folder that has them"
        )

    @property
    def empty(self) -> bool:
        """Whether no rank's file is there."""
        return not self._worlds()

    def read(self, saved_world: int) -> Callable[[int], Mapping[str, Any]]:
        """Return a function that reads a rank's file."""

        def read(rank: int) -> Mapping[str, Any]:
            path = self.folder / file_name(rank, saved_world, self._key)
            check_summed(path)
            record: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return record

        return read

    def _worlds(self) -> dict[int, list[Path]]:
        worlds: dict[int, list[Path]] = {}
        for path in self.folder.glob("gradwire*.pt"):
            name = _NAME.fullmatch(path.name)
            if name is not None and name["key"] == self._key:
                worlds.setdefault(int(name["world"]), []).append(path)
        return worlds
