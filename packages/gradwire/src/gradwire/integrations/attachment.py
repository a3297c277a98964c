"""gradwire on a framework's model: attached when training starts, checked and closed when it ends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.attached import Attached, Scaler
from gradwire.autotune import Auto
from gradwire.autotune.initial_plan import InitialPlan
from gradwire.checkpoints import check_sealed, check_summed, save_checkpoint, sealed
from gradwire.ddp.attach import attach
from gradwire.errors import AttachError, MissingPackageError, SpecError, StateError
from gradwire.fields import Source, mapping, optional, whole
from gradwire.plan import PlanLike
from gradwire.sync.connect import check_timeout
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.residual import redivide
from gradwire.version import how_to_install

# Find the ``DistributedDataParallel`` inside a framework's model.


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


# Report a missing optional package in one sentence instead of a traceback of imports.


@contextmanager
def needed(package: str, extra: str) -> Iterator[None]:
    """Turn a failing import of ``package`` into a ``MissingPackageError`` that names the extra."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire.integrations.{package} needs the package {package}, which does not load here "
            f"({error}); {how_to_install(extra)}",
            name=package,
        ) from error


# Each rank's residuals in its own file, beside the checkpoint that a framework writes once for all ranks.
#
# Frameworks save the state of rank 0. Residuals differ from rank to rank, so each rank writes a file whose
# name and content identify the rank, and no rank can load another's file by mistake.

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


LedgerLike = Ledger | Callable[[int], Ledger] | None


class Attachment:
    """The state of a framework's callback or strategy, for one model at a time.

    Parameters
    ----------
    plan, timeout_s, strict
        As for ``gradwire.attach``; read here, so that mistakes are found before processes start.
    ledger
        This rank's ledger, which the caller closes; or, if the rank isn't known yet, a function that returns
        the ledger of a rank, which ``close`` closes. By default, a new ledger.
    resume_residuals
        Whether a resumed run restores each rank's residuals. False drops what was lost before.
    """

    def __init__(
        self,
        plan: PlanLike | Auto = None,
        *,
        timeout_s: float = 30.0,
        ledger: LedgerLike = None,
        strict: bool = False,
        resume_residuals: bool = True,
    ) -> None:
        check_timeout(timeout_s)
        initial = InitialPlan.of(plan)
        self.plan, self._auto = initial.plan, initial.auto
        self.resume_residuals = resume_residuals
        self.rank, self.world = 0, 1
        self._timeout_s = timeout_s
        self._ledger = ledger
        self._strict = strict
        self._attached: Attached | None = None
        self._steps_before = 0
        self._loads = False

    @property
    def attached(self) -> Attached:
        """The result of ``gradwire.attach``, even after ``close``. Raises ``AttachError`` before."""
        if self._attached is None:
            raise AttachError(
                "gradwire is not attached yet, for the model is wrapped when training begins; ask again then"
            )
        return self._attached

    @property
    def keeps_state(self) -> bool:
        """Whether there is a model, and each rank has a state: residuals, or decisions."""
        return self._attached is not None and (self.plan.keeps_residual or self._auto is not None)

    def attach(self, model: DistributedDataParallel, scaler: Scaler | None = None) -> Attached:
        """Attach to ``model`` on all ranks, and release an earlier one. Raises as ``gradwire.attach``.

        Residuals follow the framework's ``scaler``, if it scales the loss.
        """
        self.close()
        self.rank = dist.get_rank(model.process_group)
        self.world = dist.get_world_size(model.process_group)
        ledger = self._ledger(self.rank) if callable(self._ledger) else self._ledger
        if ledger is not None and ledger.rank != self.rank:
            raise SpecError(
                f"rank {self.rank} expected a ledger of its own, got one of rank {ledger.rank}; give the "
                "function that makes it of a rank: ledger=gradwire.Ledger"
            )
        self._attached = attach(
            model, self._auto or self.plan, timeout_s=self._timeout_s, ledger=ledger, strict=self._strict
        )
        self._steps_before = self._attached.ledger.summary().steps
        if scaler is not None:
            self._attached.follow(scaler)
        if self._loads:
            self._attached.check_at_next_step()
        return self._attached

    def loads(self) -> None:
        """Let all ranks compare their weights in the next step, because the framework loads a checkpoint."""
        self._loads = True  # a model that is attached later has these weights, too
        if self._attached is not None:
            self._attached.check_at_next_step()

    def check_it_ran(self, updates: int) -> None:
        """Raise ``AttachError`` if there were this many updates but no gradient reached gradwire."""
        if updates > 0 and self.attached.ledger.summary().steps == self._steps_before:
            raise AttachError(
                f"rank {self.rank}: the weights were updated {updates} times, but no gradient reached "
                "gradwire, so compression did not run; does the loop train another model?"
            )

    def close(self) -> None:
        """Close the thread and the connections, if any; you can call this twice."""
        if self._attached is not None:
            self._attached.close()
            if callable(self._ledger):
                self._attached.ledger.close()

    def state(self, step: int | None) -> dict[str, Any]:
        """Return this rank's state: residuals or decisions, the step of the checkpoint, a checksum."""
        return sealed({"step": step, "residuals": self.attached.state_dict()})

    def resume(self, saved_world: int, read: Callable[[int], Mapping[str, Any]], step: int | None) -> None:
        """Load the states that the ranks of a world saved, which ``read`` returns one by one.

        Each rank loads its own. If the number of ranks has changed, their sum is divided anew. Raises
        ``StateError``, and changes nothing, if a state is missing, damaged, or of another step.
        """
        with _advice():
            self.attached.load_state_dict(adopted(self.rank, self.world, saved_world, read, step))

    def resume_from(self, folder: ResidualFolder, step: int | None) -> None:
        """Load the states in a checkpoint's folder. Raises ``StateError`` as ``resume``, or if none.

        A run that chooses its plan does without, and measures anew.
        """
        if self._auto is not None and folder.empty:
            return
        with _advice():
            saved_world = folder.saved_world(self.world)
        self.resume(saved_world, folder.read(saved_world), step)


class Attaches:
    """A mixin for a framework's classes: their ``Attachment``, and its handle and ledger for users."""

    _gradwire: Attachment

    @property
    def attached(self) -> Attached:
        """The handle from ``gradwire.attach``. Raises ``AttachError`` before training begins."""
        return self._gradwire.attached

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run, also after training. Raises ``AttachError`` before."""
        return self._gradwire.attached.ledger


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except StateError as error:
        error.add_note("with resume_residuals=False training goes on without what earlier steps lost")
        raise
