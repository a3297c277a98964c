"""The observers of one process, active until the process's largest model has run enough steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from gradwire.autotune.recorder import Recorder
from gradwire.autotune.steps import Observed, RecordedSteps, observe, stretch
from gradwire.errors import AttachError, ExchangeError, GradwireError
from gradwire.exchange import Exchange
from gradwire.files import replace_file
from gradwire.fsdp.units import units_of, world_group
from gradwire.plan import Plan
from gradwire.profile.ddp import Attempt, DdpWatch, keeping
from gradwire.profile.settings import Notes, Settings
from gradwire.script.steps import after_backward
from gradwire.sync.bucket.observe import StepCost
from gradwire.sync.group import connect

Note = Callable[[torch.Tensor, float], None]
"""A function that records a collective, given its largest tensor and the seconds of its call."""


class FsdpWatch:
    """An observer of FSDP2 modules, active until ``remove``, with the attributes of ``DdpWatch``.

    It records the tensors of FSDP's collectives, and how long each step waits for them. On accelerators,
    collectives overlap computation: the observer sees no waiting, and counts the whole step as computation.
    """

    def __init__(self, settings: Settings, passed: Callable[[Any], None]) -> None:
        self.steps, self.floats, self.problem = 0, 0, ""
        self._passed = passed
        self._recorder = Recorder("FSDP2", config=keeping(settings), warm_up=settings.warm_up)
        self._undo: dict[int, Callable[[], None]] = {}
        self._queued, self._wait_s = False, 0.0

    def add(self, module: Any) -> None:
        """Observe a module, or a list of modules, that ``fully_shard`` has returned, and their submodules."""
        for each in module if isinstance(module, (list, tuple)) else [module]:
            with suppress(AttachError):  # a module without parameters of its own
                for unit in units_of(each):
                    self._watch(unit)

    def _watch(self, unit: Any) -> None:
        if unit.replica_group is not None or len(unit.mesh_ranks) != dist.get_world_size():
            self.problem = (
                f"profile: expected FSDP2 modules sharded over all ranks, got {unit.name!r} on a mesh of "
                f"{tuple(unit.parameters.mesh_info.mesh.shape)}; shard the module over one mesh of all ranks"
            )
        for comm, note in ((unit.reduce_scatter, self._scattered), (unit.all_gather, self._gathered)):
            if id(comm) not in self._undo:
                self._undo[id(comm)] = noted(comm, note)

    @property
    def recorded(self) -> RecordedSteps:
        """The measured steps. Reading them waits for a device."""
        return self._recorder.recorded

    def remove(self) -> None:
        """Restore FSDP's collectives."""
        for undo in self._undo.values():
            undo()
        self._undo.clear()

    def _gathered(self, output: torch.Tensor, seconds: float) -> None:
        """Record an all-gather of weights."""
        self._recorder.gathered(output.numel(), seconds)

    def _scattered(self, gradient: torch.Tensor, seconds: float) -> None:
        """Record a reduce-scatter of a module's gradients."""
        if not self._queued:
            self._queued = True
            after_backward(self._end)
        count = self._recorder.handed_over(gradient)
        if count:
            self._recorder.keep(stretch(gradient, count))
        self._wait_s += seconds

    def _end(self) -> None:
        """Record the end of a step, after all gradients have been reduced."""
        self.steps += 1
        self._recorder.end(StepCost(self.steps, self._wait_s))
        self._queued, self._wait_s, self.floats = False, 0.0, sum(self._recorder.counts)
        self._passed(self)


def noted(comm: Any, note: Note) -> Callable[[], None]:
    """Pass the largest tensor and the seconds of each call of ``comm`` to ``note``; return an undo function.

    ``comm`` gets a subclass of its own class, because FSDP checks the type. Results stay bit-identical.
    """
    own = type(comm)

    def call(self: Any, *words: Any, **options: Any) -> Any:
        began = perf_counter()
        result = own.__call__(self, *words, **options)
        seconds = perf_counter() - began
        tensors = [each for each in (*words, *options.values()) if isinstance(each, torch.Tensor)]
        note(max(tensors, key=torch.Tensor.numel), seconds)
        return result

    comm.__class__ = type(own.__name__, (own,), {"__call__": call, "__module__": own.__module__})

    def undo() -> None:
        comm.__class__ = own

    return undo


@cache
def session_of(settings: str) -> Session:
    """Return this process's session with these settings, which are the text in an ``Entry``."""
    return Session(Settings.of_text(settings))


class Session:
    """The profile of one process: observes all models, and writes the result after enough steps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._watches: list[DdpWatch | FsdpWatch] = []
        self._sharded: FsdpWatch | None = None
        self._attempt: Attempt | None = None
        self._over = False

    def add_ddp(self, model: Any) -> None:
        """Observe a DDP model, from its first step on."""
        if not self._over and self._has_peers(model.process_group):
            self._watches.append(DdpWatch(model, self._settings, self._passed))
            self._note(Notes(rank=dist.get_rank()))

    def add_fsdp(self, module: Any) -> None:
        """Observe a module, or a list of modules, that ``fully_shard`` has returned."""
        if self._over or not self._has_peers(dist.group.WORLD):
            return
        if self._settings.tries:
            self._give_up(
                "--try: expected a script with DistributedDataParallel, got one with FSDP2; profile "
                "without --try, or call gradwire.attach_fsdp in the script"
            )
            return
        if self._sharded is None:
            self._sharded = FsdpWatch(self._settings, self._passed)
            self._watches.append(self._sharded)
            self._note(Notes(rank=dist.get_rank()))
        self._sharded.add(module)
        if self._sharded.problem:
            self._give_up(self._sharded.problem)

    def _has_peers(self, group: Any) -> bool:
        world = dist.get_world_size(group)
        if world == 1:
            self._give_up(
                "expected a script with 2 or more ranks, got 1, which exchanges nothing; start more ranks, "
                "for example with torchrun --nproc-per-node 2"
            )
        return world > 1

    def _passed(self, watch: DdpWatch | FsdpWatch) -> None:
        """Count a completed step of the process's largest model, and end the profile after enough steps."""
        if self._over or watch is not max(self._watches, key=lambda each: each.floats):
            return
        self._note(Notes(watch.steps, rank=dist.get_rank()))
        if self._attempt is not None:
            self._look(self._attempt)
        elif watch.steps >= self._settings.warm_up + self._settings.steps:
            self._finish(watch)

    def _finish(self, watch: DdpWatch | FsdpWatch) -> None:
        """Combine all ranks' observations, write them on rank 0, and stop observing; or begin the trial."""
        if watch.problem:
            self._give_up(watch.problem)
            return
        if self._settings.tries and isinstance(watch, DdpWatch):
            self._attempt = Attempt(watch, self._settings.steps, self._refuse)
            return
        self._close()
        try:
            observed = self._observed(watch)
        except GradwireError as error:
            self._refuse(str(error))
            return
        if dist.get_rank() == 0:
            self._leave(observed)
        self._note(Notes(watch.steps, done=True, rank=dist.get_rank()))
        if not self._settings.goes_on:
            raise SystemExit(0)

    def _look(self, attempt: Attempt) -> None:
        """Record a step with gradwire attached, and end the script after enough such steps."""
        try:
            tried = attempt.passed()
            if tried is None:
                return
            self._close()
            attempt.close()
        except GradwireError as error:
            self._refuse(str(error))
            return
        if dist.get_rank() == 0:
            tried.save(self._settings.tried)
        self._note(Notes(done=True, rank=dist.get_rank()))
        raise SystemExit(0)

    def _refuse(self, reason: str) -> None:
        self._give_up(f"rank {dist.get_rank()}: {reason}")

    def _leave(self, observed: Observed) -> None:
        """Write the observation to the profiler's folder, unless the profiler has removed the folder."""
        try:
            replace_file(self._settings.observed, observed.content())
        except OSError:
            if self._settings.observed.parent.exists():
                raise

    def _observed(self, watch: DdpWatch | FsdpWatch) -> Observed:
        timeout_s = self._settings.timeout_s
        advice = "; run the same number of steps on all ranks"
        group = world_group() if isinstance(watch, FsdpWatch) else watch.group
        with closing(Exchange(connect(group, timeout_s, ExchangeError, advice), Plan())) as exchange:
            return observe(exchange, watch.recorded, timeout_s)

    def _give_up(self, problem: str) -> None:
        """Write the problem for the profiler to report, and stop observing, as the problem would remain."""
        self._close()
        self._note(Notes(rank=dist.get_rank(), problem=problem))
        if not self._settings.goes_on:
            raise SystemExit(0)

    def _close(self) -> None:
        self._over = True
        for each in self._watches:
            each.remove()

    def _note(self, notes: Notes) -> None:
        """Write the notes if this rank is rank 0 or the machine's first rank, or if there is a problem."""
        first_here = os.environ.get("LOCAL_RANK") == "0"  # according to torchrun
        if notes.rank == 0 or notes.problem or first_here:
            with suppress(OSError):  # the profiler has ended and removed its folder
                notes.save(self._settings.notes)
