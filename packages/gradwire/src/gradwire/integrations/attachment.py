"""The attachment of gradwire to the model that a framework trains, with residuals in checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.attached import Attached, Scaler
from gradwire.autotune import Auto, InitialPlan
from gradwire.checkpoints import check_sealed, check_summed, save_checkpoint, sealed
from gradwire.ddp.attach import attach
from gradwire.errors import AttachError, MissingPackageError, SpecError, StateError, add_note
from gradwire.fields import Source, mapping, optional, whole
from gradwire.plan import PlanLike
from gradwire.sync.checkpoint import redivide
from gradwire.sync.group import check_timeout
from gradwire.sync.ledger.ledger import Ledger
from gradwire.version import how_to_install


def ddp_inside(model: object, owner: str) -> DistributedDataParallel:
    """Return the one DDP module in ``model``, or raise ``AttachError``, naming the framework ``owner``."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    found = [module for module in modules if isinstance(module, DistributedDataParallel)]
    if len(found) == 1:
        return found[0]
    if found:
        raise AttachError(
            f"{owner}: expected one DistributedDataParallel in its model, got {len(found)}; call "
            "gradwire.attach for each DistributedDataParallel"
        )
    remedy = (
        "configure the framework for DDP (for FSDP2, use gradwire.attach_fsdp), and attach to the model "
        "that the framework prepared; without GPUs, pass Accelerator(cpu=True) or "
        "TrainingArguments(use_cpu=True)"
    )
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        remedy = "there is only one process: start several processes with torchrun, or remove gradwire"
    raise AttachError(
        f"{owner}: expected a DistributedDataParallel for gradwire, got a {type(model).__name__} without "
        f"one; {remedy}"
    )


@contextmanager
def needed(package: str, extra: str) -> Iterator[None]:
    """Run a block that imports ``package``. Raises ``MissingPackageError``, which names the extra."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire.integrations.{package} needs the package {package}, which cannot be imported "
            f"({error}); {how_to_install(extra)}",
            name=package,
        ) from error


# Files of residuals, next to a framework's checkpoint. Frameworks save only the state of rank 0, but
# residuals differ between ranks. Therefore, each rank writes a file of its own, whose name and content
# identify the rank, so that no rank loads another rank's file by mistake.

_NAME = re.compile(r"gradwire(?P<key>.*)-rank\d+-of-(?P<world>\d+)\.pt")


def file_name(rank: int, world: int, key: str = "") -> str:
    """Return the name of a rank's file of residuals. ``key`` distinguishes several models."""
    return f"gradwire{key}-rank{rank}-of-{world}.pt"


def adopted(
    rank: int, world: int, saved_world: int, read: Callable[[int], Mapping[str, Any]], step: int | None
) -> Mapping[str, Any]:
    """Return this rank's initial residuals from the states that ``saved_world`` ranks saved.

    Raises ``StateError`` if a rank's file is missing, damaged, or from a different ``step`` (unless None).
    """
    if saved_world == world:
        return _residuals(read, rank, step)
    return redivide([_residuals(read, each, step) for each in range(saved_world)], world)[rank]


def _residuals(read: Callable[[int], Mapping[str, Any]], rank: int, step: int | None) -> Mapping[str, Any]:
    try:
        record = read(rank)
    except Exception as error:  # torch.load may raise any exception for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"the residuals of rank {rank} cannot be read: {reason}; store the files "
            "gradwire-rank*.pt with the checkpoint, readable by all ranks"
        ) from error
    what = f"the residuals of rank {rank}"
    given = Source(what, "resume from a complete checkpoint", StateError).fields(record)
    saved_step, residuals = given.get("step", optional(whole())), given.get("residuals", mapping)
    check_sealed(record, what)
    if step is not None and saved_step != step:
        raise StateError(
            f"expected residuals of step {step}, as in the checkpoint, got residuals of step {saved_step} "
            f"from rank {rank}; resume from a complete checkpoint"
        )
    return residuals


class ResidualFolder:
    """The residual files of all ranks in a checkpoint's folder. ``key`` distinguishes several models."""

    def __init__(self, folder: str | os.PathLike[str], key: str = "") -> None:
        self.folder = Path(folder)
        self._key = key

    def write(self, record: Mapping[str, Any], rank: int, world: int) -> None:
        """Write this rank's file atomically. Rank 0 also removes the files of runs with other world sizes."""
        save_checkpoint(self.folder / file_name(rank, world, self._key), record)
        if rank == 0:
            for other, files in self._worlds().items():
                if other != world:
                    for each in files:
                        each.unlink(missing_ok=True)

    def saved_world(self, world: int) -> int:
        """Return the number of ranks that wrote the files. Raises ``StateError`` if it is unclear."""
        found = sorted(self._worlds())
        if world in found:
            return world
        if len(found) == 1:
            return found[0]
        what = f"residuals from runs with {' and '.join(map(str, found))} ranks" if found else "none"
        raise StateError(
            f"the checkpoint {self.folder}: expected the residuals of all ranks, got {what}; pass a folder "
            "with the residuals of one run"
        )

    @property
    def empty(self) -> bool:
        """Whether the folder contains no rank's file."""
        return not self._worlds()

    def read(self, saved_world: int) -> Callable[[int], Mapping[str, Any]]:
        """Return a function that reads the file of a rank, written by one of ``saved_world`` ranks."""

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
    """The gradwire state of a framework's callback or strategy, for one model at a time.

    ``plan``, ``timeout_s``, and ``strict`` are as for ``gradwire.attach``; mistakes are found before
    processes start. ``ledger`` is this rank's ledger, which the caller closes; or a function of the rank that
    returns a ledger, which closes with the attachment; or None for a new ledger. ``resume_residuals`` says
    whether a resumed run restores each rank's residuals from the checkpoint.
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
        self.plan, self._auto, self.resume_residuals = initial.plan, initial.auto, resume_residuals
        self.rank, self.world = 0, 1
        self._timeout_s, self._ledger, self._strict = timeout_s, ledger, strict
        self._attached: Attached | None = None
        self._steps_before, self._loads = 0, False

    @property
    def attached(self) -> Attached:
        """The handle from ``gradwire.attach``, also after ``close``. Raises ``AttachError`` without one."""
        if self._attached is None:
            raise AttachError(
                "gradwire is not attached yet, because the model is wrapped when training begins; read "
                "attached or ledger during or after training"
            )
        return self._attached

    @property
    def keeps_state(self) -> bool:
        """Whether gradwire is attached and each rank has a state to save: residuals or decisions."""
        return self._attached is not None and (self.plan.keeps_residual or self._auto is not None)

    def attach(self, model: DistributedDataParallel, scaler: Scaler | None = None) -> Attached:
        """Attach gradwire to ``model`` on all ranks, after closing an earlier attachment.

        With ``scaler``, residuals follow the framework's loss scale. Raises the errors of ``attach``.
        """
        self.close()
        self.rank = dist.get_rank(model.process_group)
        self.world = dist.get_world_size(model.process_group)
        with ExitStack() as undo:
            ledger = self._ledger
            if callable(ledger):
                ledger = ledger(self.rank)
                undo.callback(ledger.close)
            if ledger is not None and ledger.rank != self.rank:
                raise SpecError(
                    f"rank {self.rank}: expected a ledger of this rank, got the ledger of rank "
                    f"{ledger.rank}; pass a function that creates a ledger for each rank: "
                    "ledger=gradwire.Ledger"
                )
            self._attached = attach(
                model, self._auto or self.plan, timeout_s=self._timeout_s, ledger=ledger, strict=self._strict
            )
            self._attached._after_close(undo.pop_all().close)
        self._steps_before = self._attached.ledger.summary().steps
        if scaler is not None:
            self._attached.follow(scaler)
        if self._loads:
            self._attached.check_at_next_step()
        return self._attached

    def loads(self) -> None:
        """Schedule a comparison of all ranks' weights, because the framework is loading a checkpoint."""
        self._loads = True  # a model that is attached later gets the checkpoint's weights, too
        if self._attached is not None:
            self._attached.check_at_next_step()

    def check_it_ran(self, updates: int) -> None:
        """Raise ``AttachError`` if weights were updated (``updates`` > 0) without gradients from gradwire."""
        if updates > 0 and self.attached.ledger.summary().steps == self._steps_before:
            raise AttachError(
                f"rank {self.rank}: the weights were updated {updates} times, but no gradient reached "
                "gradwire, so compression did not run; train through the DistributedDataParallel that the "
                "framework made, not through the module in it"
            )

    def close(self) -> None:
        """Close gradwire's thread and connections, if there are any. Repeated calls are allowed."""
        if self._attached is not None:
            self._attached.close()

    def state(self, step: int | None) -> dict[str, Any]:
        """Return this rank's state for a checkpoint: residuals or decisions, the step, and a checksum."""
        return sealed({"step": step, "residuals": self.attached.state_dict()})

    def resume(self, saved_world: int, read: Callable[[int], Mapping[str, Any]], step: int | None) -> None:
        """Load the states that ``saved_world`` ranks saved; ``read`` returns the state of a rank.

        If the number of ranks has changed, the sum of the residuals is redistributed. If a state is missing,
        damaged, or from a different step, raises ``StateError`` and changes nothing.
        """
        with _advice():
            self.attached.load_state_dict(adopted(self.rank, self.world, saved_world, read, step))

    def resume_from(self, folder: ResidualFolder, step: int | None) -> None:
        """Load the states in a folder, which may be empty if the run chooses its plan itself.

        Raises the errors of ``resume``, and ``StateError`` for any other empty folder.
        """
        if self._auto is not None and folder.empty:
            return
        with _advice():
            saved_world = folder.saved_world(self.world)
        self.resume(saved_world, folder.read(saved_world), step)


class Attaches:
    """A mixin that gives a framework's class the properties ``attached`` and ``ledger``."""

    _gradwire: Attachment

    @property
    def attached(self) -> Attached:
        """The handle that ``gradwire.attach`` returned. Raises ``AttachError`` before training begins."""
        return self._gradwire.attached

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run, even after training. Raises ``AttachError`` before training begins."""
        return self._gradwire.attached.ledger


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except StateError as error:
        add_note(error, "with resume_residuals=False, training continues without the saved residuals")
        raise
