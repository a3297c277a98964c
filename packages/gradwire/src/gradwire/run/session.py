"""The models in one of the script's processes, to which gradwire attaches before the first training pass."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from multiprocessing.util import Finalize
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradwire.attached import Attached
from gradwire.errors import AttachError, GradwireError
from gradwire.run.comparison import Compared
from gradwire.run.methods import DdpModel, FsdpModel, StepSink
from gradwire.run.models import ModelTurns, RunModel
from gradwire.run.outcome import ModelOutcome, RunOutcome
from gradwire.run.settings import RunSettings
from gradwire.sync.group import REFUSED, agree, all_or_none
from gradwire.sync.ledger.ledger import Ledger
from gradwire.units import format_size

MEETING_S = 300.0
"""The most seconds to wait until all ranks begin their first training pass, before which they may compile."""
SAVED_EVERY_S = 2.0
"""The interval between saved outcomes in seconds, short because a rank may be killed at any time."""
NO_PASS = "the script ended before its first training pass (gradients enabled, in training mode)"


def say(sentence: str) -> None:
    """Print a sentence on standard error, because standard output is the script's."""
    with suppress(OSError, ValueError, AttributeError):  # standard error is closed
        sys.stderr.write(f"gradwire: {sentence}\n")
        sys.stderr.flush()


@cache
def session_of(settings: str) -> RunSession:
    """Return this process's session. ``settings`` is the text in the ``Entry`` of ``gradwire run``."""
    return RunSession(RunSettings.of_text(settings))


class FirstPass:
    """A forward pre-hook that calls ``then`` once, before the first training pass of a module.

    Evaluation passes don't count, because a script may evaluate on one rank only. In a copy of the module,
    the hook does nothing.
    """

    def __init__(self, module: nn.Module, then: Callable[[], None]) -> None:
        self._module, self._then, self._is_over = weakref.ref(module), then, False
        # A compiled forward pass would call the hook only while tracing.
        self._begin = torch.compiler.disable(self._look)  # type: ignore[no-untyped-call]
        self._handle = module.register_forward_pre_hook(self, prepend=True)

    def __call__(self, module: nn.Module, _inputs: object) -> None:
        """Call ``then`` if the forward pass that begins is a training pass."""
        self._begin(module)

    def remove(self) -> None:
        """Remove the forward pre-hook from the module."""
        self._is_over = True
        self._handle.remove()

    def _look(self, module: nn.Module) -> None:
        if self._is_over or module is not self._module():
            return
        if torch.is_grad_enabled() and module.training:
            self.remove()
            self._then()

    def __reduce__(self) -> tuple[type[NoHook], tuple[()]]:
        return NoHook, ()


class NoHook:
    """The placeholder for a ``FirstPass`` in a copy of its module."""

    def __call__(self, *_: object) -> None:
        """Ignore a forward pass of the copy."""


class RunSession:
    """The session of one process, which attaches gradwire to the models and compares the models' steps."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._models: list[RunModel] = []
        self._pending: dict[int, tuple[weakref.ref[nn.Module], FirstPass, str]] = {}
        self._turns = ModelTurns(settings.cycles)
        self._saved_at = -SAVED_EVERY_S
        self._rank: int | None = None

    def add_ddp(self, model: Any) -> None:
        """Prepare to attach gradwire to a DDP model before its first training pass."""
        self._wait_for(model, DdpModel)

    def add_fsdp(self, module: Any) -> None:
        """Prepare to attach gradwire to a module of ``fully_shard``, or the outermost module around it."""
        for each in module if isinstance(module, (list, tuple)) else [module]:
            self._wait_for(each, FsdpModel)

    def _wait_for(self, module: Any, kind: type[DdpModel] | type[FsdpModel]) -> None:
        if self._rank is None:
            self._rank = dist.get_rank()
            # Not atexit: processes that multiprocessing started end without it.
            Finalize(None, self._save, kwargs={"now": True}, exitpriority=0)
        known = self._pending.get(id(module))
        if known is None or known[0]() is not module:  # fully_shard may return one module twice
            own = weakref.ref(module)
            first = FirstPass(module, partial(self._begin, own, kind))
            self._pending[id(module)] = own, first, kind(module).name
        self._save()

    def _begin(self, module: weakref.ref[Any], kind: type[DdpModel] | type[FsdpModel]) -> None:
        """Attach gradwire to a model that begins its first training pass on this rank."""
        root = module()
        assert root is not None, "its forward pass is running"
        for each in root.modules():  # attaching to the root also attaches to FSDP's modules within
            pending = self._pending.pop(id(each), None)
            if pending is not None:
                pending[1].remove()
        trained = kind(root)
        found = RunModel(trained, lambda method: self._passed(found, method))
        self._models.append(found)
        try:
            found.attached = self._attach(found)
        except GradwireError as error:
            found.problem = str(error)
        if self._rank == 0 and not self._settings.quiet:  # ``attach`` logs the ranks and the plan
            size = f"{format_size(4 * found.floats)} of gradients"
            no = f"not attached to {trained.name}: {found.problem}"
            say(no if found.problem else f"attached to {trained.name} ({size})")
        self._save(now=True)
        if found.problem and self._settings.strict:
            raise AttachError(f"gradwire run --strict: {trained.name} is not attached: {found.problem}")
        if found.attached is not None:
            self._turns.add(found)

    def _attach(self, model: RunModel) -> Attached:
        """Attach gradwire on all ranks, or on none. Raises ``GradwireError``."""
        group, timeout_s, trained = model.trained.group, self._settings.timeout_s, model.trained
        if group.size() == 1:
            raise AttachError(
                "the job has 1 rank, which exchanges nothing; start more ranks, for example with torchrun "
                "--nproc-per-node 2"
            )
        refusal = trained.refusal()
        if refusal:
            with suppress(AttachError):
                agree(group, {REFUSED: refusal}, MEETING_S)
            raise AttachError(refusal)
        agree(group, self._settings.facts, MEETING_S)
        ledger = Ledger(group.rank(), [StepSink(model.passed)])
        with all_or_none(group, timeout_s):
            attached = trained.attach(self._settings, ledger)
        try:
            agree(group, {}, timeout_s)
        except AttachError:
            trained.give_up(attached)
            raise
        return attached

    def _passed(self, model: RunModel, method: str) -> None:
        """Pass the end of a model's training step to the turns; print the verdict at the comparison's end."""
        was_over = self._turns.is_over
        self._turns.passed(model, method)
        ends = self._turns.is_over and not was_over
        self._save(now=ends)
        if ends and self._rank == 0 and not self._settings.quiet:
            found = Compared(self._turns.cycles_s() or {}, self._settings.cycles, self._turns.plan)
            say(f"{found.verdict()} The script continues with gradwire.")

    def _save(self, *, now: bool = False) -> None:
        """Write the outcome on rank 0; on every other rank, write an empty file to show that the rank ran."""
        if self._rank is None or (not now and monotonic() - self._saved_at < SAVED_EVERY_S):
            return
        self._saved_at = monotonic()
        with suppress(OSError):  # the command has ended, or runs on another machine
            if self._rank == 0:
                self._outcome().save(self._settings.outcome)
            else:
                self._settings.elsewhere.touch()

    def _outcome(self) -> RunOutcome:
        models = [each.outcome() for each in self._models]
        waiting = {key: module for key, (ref, _, _) in self._pending.items() if (module := ref()) is not None}
        within = {id(each) for module in waiting.values() for each in module.modules() if each is not module}
        models += [ModelOutcome(self._pending[key][2], NO_PASS) for key in waiting if key not in within]
        return RunOutcome(tuple(models), self._turns.cycles_s(), self._turns.plan)
