"""Observed steps of a training run: the times and gradients that an estimate needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradwire.autotune.costs import LINE_FIELDS, line_of, measuring_line
from gradwire.autotune.pacing import at_once
from gradwire.autotune.rules import BUCKETS, SHARDS, CandidateRules
from gradwire.autotune.settings import DEFAULT
from gradwire.autotune.step_times import StepTime, StepTimes
from gradwire.checkpoints import check_summed, summed
from gradwire.errors import DataError, ExchangeError, LinkError
from gradwire.exchange import Exchange
from gradwire.fields import Source, of, one_of, optional, real, rows, tensor_of, to_values
from gradwire.files import Content, write_files
from gradwire.machine import machine_id
from gradwire.sync.messages import gather
from gradwire.timing.line import Line
from gradwire.timing.pairs import map_hosts
from gradwire.units import counted, format_duration, format_size

FORMS = {"DDP": BUCKETS, "FSDP2": SHARDS}
"""The candidate rules of each kind of run."""
_DIGITS = 4
"""The number of hexadecimal digits of a machine's id per float32, which holds them exactly."""


@dataclass(frozen=True)
class Observed:
    """Steps of a training run, with the times of the slowest rank.

    Attributes
    ----------
    kind
        ``"DDP"`` or ``"FSDP2"``.
    device
        The type of the device that computes.
    world, ranks_per_machine
        The number of ranks, and the number of ranks on rank 0's machine.
    threads
        The number of PyTorch threads in each rank.
    steps
        The number of steps in each median.
    compute_s, backward_s, exposed_s
        Seconds of a step, as in ``StepTime``; ``backward_s`` is 0 if backward waits for each exchange.
    counts
        The number of floats in each gradient bucket, in the order of exchange.
    gathers
        The number of floats in each all-gather of weights in a step.
    line
        The slowest link between neighbours; None if it was not measured.
    gradients
        Excerpts of rank 0's gradients before averaging: 1-D float32 on the CPU, one for each of a few steps.
    attached
        The spec of the codec that exchanged the gradients; None without gradwire.
    scatter
        The largest relative scatter of any rank's step times (``StepTimes.disagreement``).
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
        """The candidate rules of this kind of run."""
        return FORMS[self.kind]

    def __str__(self) -> str:
        line = "" if self.line is None else f"; slowest link: {self.line}"
        return (
            f"{self.kind} on {self.world} ranks, {self.ranks_per_machine} of them on this machine, "
            f"{counted(self.steps, 'step')}: {format_duration(self.step_s)} per step, with "
            f"{format_duration(self.compute_s)} of computation and {format_duration(self.exposed_s)} of "
            f"waiting. {format_size(4 * sum(self.counts))} of gradients in "
            f"{counted(len(self.counts), 'bucket')}{line}."
        )

    def values(self) -> dict[str, object]:
        """Return the step time and all fields except the gradients, as a JSON object."""
        found: dict[str, object] = to_values(replace(self, gradients=()))
        del found["gradients"]
        return {**found, "step_s": self.step_s}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all fields, with the gradients, to a file atomically. Raises ``JobError``."""
        write_files({Path(path): self.content()})

    def content(self) -> Content:
        """Return the file's content for ``write_files`` and ``replace_file``."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["line"] = None if self.line is None else asdict(self.line)
        fields["gradients"] = list(self.gradients)
        return summed(fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Observed:
        """Read a file written by ``save`` without executing code from it. Raises ``DataError``."""
        try:
            check_summed(path)
            content = torch.load(Path(path), map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises any type for a damaged file
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"expected a readable file of observed steps, got {path}: {reason}; run 'gradwire profile' "
                "again"
            ) from error
        source = Source(f"the observation {path}", "run 'gradwire profile' again", DataError)
        gradients = rows(tensor_of(torch.float32, None))
        line = optional(of(Line, nbytes_per_s=real(0.0, finite=False)))
        return source.read(content, of(cls, kind=one_of(*FORMS), gradients=gradients, line=line))


@dataclass(frozen=True)
class RecordedSteps:
    """The recorded steps of one rank. The fields are as in ``Observed``."""

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
    """Return the steps with the times of the slowest rank. All ranks call this together.

    Without a ``line``, the links between the ranks are measured. The counts and gradients are this rank's.
    Raises ``ExchangeError``.
    """
    median, scatter = steps.times.median, steps.times.disagreement
    row = [*astuple(median), scatter, *_machine()]
    if line is None:
        row += _own_line(exchange)
    rows, last = gather(exchange, row, timeout_s), None
    if line is None:
        line, last = line_of([each[-LINE_FIELDS:] for each in rows]), -LINE_FIELDS
    machines = [tuple(each[4:last]) for each in rows]
    return Observed(
        kind=steps.kind,
        device=steps.device.type,
        world=exchange.link.world,
        ranks_per_machine=machines.count(machines[0]),
        threads=torch.get_num_threads(),
        steps=len(steps.times),
        counts=steps.counts,
        gathers=steps.gathers,
        line=line,
        gradients=steps.gradients,
        attached=attached,
        scatter=max(each[3] for each in rows),
        **asdict(slowest(rows)),
    )


def _own_line(exchange: Exchange) -> tuple[float, ...]:
    link = exchange.link
    try:
        hosts = map_hosts(link)
    except LinkError as error:
        raise ExchangeError(f"the hosts of the ranks are not known: {error}") from error
    return at_once(measuring_line(hosts, link.rank, DEFAULT.attaching_piece_s), exchange)


def slowest(rows: Sequence[Sequence[float]]) -> StepTime:
    """Return the times of the rank that computes longest, for which the others wait.

    The rest of the longest step is waiting, because all ranks end a step together.
    """
    compute_s = max(row[0] for row in rows)
    backward_s = min(max(row[1] for row in rows), compute_s)
    step_s = max(row[0] + row[2] for row in rows)
    return StepTime(compute_s, backward_s, max(step_s - compute_s, 0.0))


def _machine() -> list[float]:
    """Return this machine's id as numbers that float32 holds exactly."""
    name = machine_id()
    return [float(int(name[at : at + _DIGITS], 16)) for at in range(0, len(name), _DIGITS)]


# Excerpts of gradients: small, from every bucket, and copied without waiting for the device.


def shares(counts: Sequence[int], most: int = DEFAULT.excerpt_count) -> list[int]:
    """Return the floats to keep from each tensor: proportional to its size, at most ``most`` in total."""
    total = sum(counts)
    return list(counts) if total <= most else [count * most // total for count in counts]


def stretch(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return a 1-D copy of the middle ``count`` values, or of all if there are fewer, on the same device."""
    flat = (values if values.layout is torch.strided else values.to_dense()).detach().reshape(-1)
    begin = max(0, flat.numel() - count) // 2
    return flat[begin : begin + count].clone()


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the concatenated excerpts, 1-D float32 on the CPU. This waits for the device."""
    return torch.cat([part.to(device="cpu", dtype=torch.float32) for part in parts])
