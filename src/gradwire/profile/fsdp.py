"""Watches FSDP2's modules: how long forward and backward wait for FSDP's collectives, and what these carry.

FSDP's own objects for collectives get a class of the same kind that notes each call and passes it on, so all
bits stay what they are. On accelerators, whose collectives run beside computation, no waiting is seen, and
all of a step counts as computation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from gradwire.auto.estimates.excerpts import KEPT_STEPS, joined, shares, stretch
from gradwire.auto.times.step_times import StepTimes
from gradwire.errors import AttachError
from gradwire.profile.backward import after_backward
from gradwire.profile.settings import Settings
from gradwire.training.fsdp.units import units_of

Note = Callable[[torch.Tensor, float], None]


class FsdpWatch:
    """Watches the modules of ``add`` until ``remove``; the attributes are those of ``DdpWatch``."""

    kind = "FSDP2"

    def __init__(self, settings: Settings, passed: Callable[[Any], None]) -> None:
        self.steps = 0
        self._settings, self._passed = settings, passed
        self._undo: dict[int, Callable[[], None]] = {}
        self._times = StepTimes()
        self._queued = False
        self._now: list[int] = []
        self._gathered: list[int] = []
        self._wait_s = 0.0
        self._excerpt: list[torch.Tensor] = []
        self._excerpts: list[list[torch.Tensor]] = []
        self.counts: tuple[int, ...] = ()
        self.gathers: tuple[int, ...] = ()
        self.device = torch.device("cpu")
        self.problem = ""

    def add(self, module: Any) -> None:
        """Watch a module that ``fully_shard`` has returned, or a list of them, and what they contain."""
        for each in module if isinstance(module, (list, tuple)) else [module]:
            with suppress(AttachError):  # one without parameters of its own: others hold them
                for unit in units_of(each):
                    self._watch(unit)

    def _watch(self, unit: Any) -> None:
        if unit.replica_group is not None or len(unit.mesh_ranks) != dist.get_world_size():
            self.problem = (
                f"profile watches FSDP2's modules that are sharded over all ranks, but {unit.name!r} is on a "
                f"mesh of {tuple(unit.parameters.mesh_info.mesh.shape)}; shard it over one mesh of all ranks"
            )
        for comm, note in ((unit.reduce_scatter, self._scattered), (unit.all_gather, self._took)):
            if id(comm) not in self._undo:
                self._undo[id(comm)] = noted(comm, note)

    @property
    def floats(self) -> int:
        """The floats of all gradients, 0 before there are any."""
        return sum(self.counts)

    @property
    def group(self) -> dist.ProcessGroup:
        """All ranks."""
        group = dist.group.WORLD
        assert group is not None, "fully_shard wants one"
        return group

    @property
    def gradients(self) -> tuple[torch.Tensor, ...]:
        """The excerpts; this waits for a device."""
        return tuple(map(joined, self._excerpts))

    @property
    def times(self) -> StepTimes:
        """The times of the steps that count."""
        return self._times

    def remove(self) -> None:
        """Leave FSDP as it was."""
        for undo in self._undo.values():
            undo()
        self._undo.clear()

    def _took(self, output: torch.Tensor, seconds: float) -> None:
        """Note that weights were gathered."""
        self._gathered.append(output.numel())
        self._wait_s += seconds

    def _scattered(self, gradient: torch.Tensor, seconds: float) -> None:
        """Note that a module's gradients were scattered."""
        if not self._queued:
            self._queued = True
            after_backward(self._end)
        self.device = gradient.device
        self._now.append(gradient.numel())
        self._wait_s += seconds
        if 0 < self._settings.warm_up - self.steps <= KEPT_STEPS and self.counts:
            known = shares(self.counts)
            place = len(self._now) - 1
            if place < len(known) and self.counts[place] == gradient.numel():
                self._excerpt.append(stretch(gradient, known[place]))

    def _end(self) -> None:
        """Note that all gradients are reduced."""
        self._queued = False
        if len(self._excerpt) == len(self.counts) == len(self._now) > 0:
            self._excerpts.append(self._excerpt)
        self.counts, self.gathers = tuple(self._now), tuple(self._gathered)
        self.steps += 1
        if self.steps >= self._settings.warm_up:
            self._times.took(self._wait_s)
        self._excerpt, self._now, self._gathered, self._wait_s = [], [], [], 0.0
        self._passed(self)


def noted(comm: Any, note: Note) -> Callable[[], None]:
    """Let ``note`` have the larger tensor and the seconds of each call of a collective; return what ends it.

    The object stays, of a class derived from its own, for FSDP asks what it is.
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
