"""Observed steps of a training: the times and gradients on which an estimate depends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradwire.autotune.config import DEFAULT
from gradwire.autotune.costs import LINE_FIELDS, line_of, own_line
from gradwire.autotune.rules import BUCKETS, SHARDS, CandidateRules
from gradwire.autotune.step_times import StepTime, StepTimes
from gradwire.checkpoints import check_summed, summed
from gradwire.errors import DataError
from gradwire.exchange import Exchange
from gradwire.fields import Source, of, one_of, optional, real, rows, tensor_of, to_values
from gradwire.files import Content, write_files
from gradwire.machine import machine_id
from gradwire.sync.agreement import gather
from gradwire.timing.line import Line
from gradwire.units import counted, format_duration, format_size

FORMS = {"DDP": BUCKETS, "FSDP2": SHARDS}
"""The rules of plans, by the name that users know a run by."""
_DIGITS = 4
"""Hexadecimal digits of a machine's id that one float32 holds exactly."""


@dataclass(frozen=True)
class Observed:
    """Steps of a run, as the slowest rank takes them.

    Attributes
    ----------
    kind
        ``"DDP"`` or ``"FSDP2"``.
    device
        The type of the device that computes.
    world, ranks_per_machine
        The number of ranks, and of those on rank 0's machine.
    threads
        PyTorch's threads in each rank.
    steps
        The number of steps that times are medians of.
    compute_s, backward_s, exposed_s
        Seconds of a step, as in ``StepTime``; 0 of backward where it waits for each exchange.
    counts
        The floats of each bucket of gradients, in the order of their exchange.
    gathers
        The floats of each gathering of weights in a step.
    line
        The slowest line between neighbours; None if it was not measured.
    gradients
        Excerpts of rank 0's own gradients, before any average: 1-D float32 on the CPU, one for each of some
        steps.
    attached
        The spec of the codec that exchanged the gradients; None without gradwire.
    scatter
        The distance of the steps' quartiles from their middle, as a share of it; the largest of all ranks.
    """

    kind: str
    device: str
    world: int
    ranks_per_machine: int
    threads: int
    steps: int
    compute_s: float
    backward_s: float
    exposed_s: float
    counts: tuple[int, ...]
    gathers: tuple[int, ...] = ()
    line: Line | None = None
    gradients: tuple[torch.Tensor, ...] = ()
    attached: str | None = None
    scatter: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.compute_s + self.exposed_s

    @property
    def rules(self) -> CandidateRules:
        """The rules for plans, by how the run exchanges gradients."""
        return FORMS[self.kind]

    def __str__(self) -> str:
        line = "" if self.line is None else f"; the slowest line carries {self.line}"
        return (
            f"{self.kind} on {self.world} ranks, {self.ranks_per_machine} of them on this machine, "
            f"{counted(self.steps, 'step')}: {format_duration(self.step_s)} a step, of which "
            f"{format_duration(self.compute_s)} are computation and {format_duration(self.exposed_s)} "
            f"waiting. {format_size(4 * sum(self.counts))} of gradients in "
            f"{counted(len(self.counts), 'bucket')}{line}."
        )

    def values(self) -> dict[str, object]:
        """Return all but the gradients as a JSON object."""
        found: dict[str, object] = to_values(replace(self, gradients=()))
        del found["gradients"]
        return {**found, "step_s": self.step_s}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, gradients included, for ``load``, all or nothing. Raises ``JobError``."""
        write_files({Path(path): self.content()})

    def content(self) -> Content:
        """Return the content of the file, for ``write_files`` and ``replace_file``."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["line"] = None if self.line is None else asdict(self.line)
        fields["gradients"] = list(self.gradients)
        return summed(fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Observed:
        """Read what ``save`` wrote; no code of the file runs. Raises ``DataError``."""
        try:
            check_summed(path)
            content = torch.load(Path(path), map_location="cpu", weights_only=True)
        except Exception as error:  # what a damaged file raises is torch's to choose
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"what was observed of a training cannot be read from {path}: {reason}"
            ) from error
        source = Source(f"the observation {path}", "let 'gradwire profile' write another", DataError)
        gradients = rows(tensor_of(torch.float32, None))
        line = optional(of(Line, nbytes_per_s=real(0.0, finite=False)))
        return source.read(content, of(cls, kind=one_of(*FORMS), gradients=gradients, line=line))


@dataclass(frozen=True)
class RecordedSteps:
    """One rank's steps; the fields are those of ``Observed``."""

    kind: str
    device: torch.device
    times: StepTimes
    counts: tuple[int, ...]
    gathers: tuple[int, ...]
    gradients: tuple[torch.Tensor, ...]


def observe(
    exchange: Exchange,
    steps: RecordedSteps,
    timeout_s: float,
    line: Line | None = None,
    attached: str | None = None,
) -> Observed:
    """Return the steps as the slowest rank takes them; all ranks call it together.

    Without a ``line``, those between the ranks are measured. The counts and gradients are this rank's. Raises
    ``ExchangeError``.
    """
    median, scatter = steps.times.median, steps.times.disagreement
    row = [*astuple(median), scatter, *_machine()]
    if line is None:
        row += own_line(exchange.link)
    rows, last = gather(exchange, row, timeout_s), None
    if line is None:
        line, last = line_of([each[-LINE_FIELDS:] for each in rows]), -LINE_FIELDS
    machines = [tuple(each[4:last]) for each in rows]
    return Observed(
        steps.kind,
        steps.device.type,
        exchange.link.world,
        machines.count(machines[0]),
        torch.get_num_threads(),
        len(steps.times),
        *astuple(slowest(rows)),
        steps.counts,
        steps.gathers,
        line,
        steps.gradients,
        attached,
        max(each[3] for each in rows),
    )


def slowest(rows: Sequence[Sequence[float]]) -> StepTime:
    """Return the times of the rank that computes longest, for which the others wait.

    The rest of the longest step is waiting, for all of them end it together.
    """
    compute_s = max(row[0] for row in rows)
    backward_s = min(max(row[1] for row in rows), compute_s)
    step_s = max(row[0] + row[2] for row in rows)
    return StepTime(compute_s, backward_s, max(step_s - compute_s, 0.0))


def _machine() -> list[float]:
    """Return this machine's id in numbers that float32 holds exactly."""
    name = machine_id()
    return [float(int(name[at : at + _DIGITS], 16)) for at in range(0, len(name), _DIGITS)]


# Excerpts of gradients: small enough to be kept, from every parameter, without waiting for a device.


def shares(counts: Sequence[int], most: int = DEFAULT.excerpt_count) -> list[int]:
    """Return how many floats of each of these tensors to keep, in proportion, ``most`` together or less."""
    total = sum(counts)
    return list(counts) if total <= most else [count * most // total for count in counts]


def stretch(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return a copy of ``count`` values from the middle, or of all, 1-D, on the device of ``values``."""
    flat = (values if values.layout is torch.strided else values.to_dense()).detach().reshape(-1)
    begin = max(0, flat.numel() - count) // 2
    return flat[begin : begin + count].clone()


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the excerpts of one step's tensors as one, 1-D float32 on the CPU; this waits for a device."""
    return torch.cat([part.to(device="cpu", dtype=torch.float32) for part in parts])
