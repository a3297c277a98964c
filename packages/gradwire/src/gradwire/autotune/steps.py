"""Steps of a training run: their times, measured on the training thread, and observations for estimates."""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from gradwire.autotune.costs import LINE_FIELDS, Rows, at_once, hosts_of, line_of, measure_line
from gradwire.autotune.settings import BUCKETS, DEFAULT, SHARDS, AutoConfig, CandidateRules
from gradwire.checkpoints import check_summed, summed
from gradwire.errors import DataError
from gradwire.exchange import Exchange
from gradwire.fields import Source, of, one_of, optional, real, rows, tensor_of, to_values
from gradwire.files import Content, write_files
from gradwire.machine import ThreadSeconds, machine_id, thread_seconds
from gradwire.sync.messages import gather
from gradwire.timing.calibrate import disagreement
from gradwire.timing.line import Line
from gradwire.units import counted, format_duration, format_size


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step: its computation, the backward pass in it, and the exposed wait for averages."""

    compute_s: float
    backward_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        """The seconds of the whole step."""
        return self.compute_s + self.exposed_s


class _Reading(NamedTuple):
    """The clock, and the training thread's busy and delayed seconds so far."""

    now_s: float
    busy_s: float = 0.0
    delayed_s: float = 0.0


class StepTimes:
    """The times of the latest steps. Each step begins when the previous step ends.

    Where threads share cores, an exchange also delays computation that runs at the same time. If ``sharing``,
    the number of computing threads per core, is known, this delay counts as exposed, and ``compute_s`` is the
    time that computation takes without an exchange: the training thread's CPU time, its waits for anything
    but a core, and its waits for a core while all ranks compute. ``spent`` returns the training thread's
    seconds; it is None if a device computes.
    """

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        config: AutoConfig = DEFAULT,
        spent: Callable[[], ThreadSeconds] | None = thread_seconds,
    ) -> None:
        self._clock, self._spent = clock, spent
        self._latest = deque[StepTime](maxlen=config.window_steps)
        self._buckets: list[tuple[_Reading, int]] = []
        self._ended: _Reading | None = None
        self._uncounted = 0
        self.sharing: float | None = None

    def __len__(self) -> int:
        return len(self._latest)

    def read(self) -> _Reading:
        """Return the current time, and the training thread's seconds so far if they are needed."""
        if self.sharing is None or self._spent is None:
            return _Reading(self._clock())
        return _Reading(self._clock(), *self._spent())

    def handed_over(self, count: int) -> None:
        """Record the time at which backward has filled a bucket of ``count`` floats."""
        self._buckets.append((self.read(), count))

    def end(self, wait_s: float | None = None) -> None:
        """Record the end of a step; the first step is not timed, because its beginning is unknown.

        ``wait_s`` is the wait for averages; by default, the time after the last bucket.
        """
        now, began = self.read(), self._ended
        self._ended = now
        buckets, self._buckets = self._buckets, []
        if began is None:
            return
        if wait_s is not None:
            self._add(StepTime(max(now.now_s - began.now_s - wait_s, 0.0), 0.0, wait_s))
        elif buckets:
            (first, count), (last, _) = buckets[0], buckets[-1]
            total = sum(each for _, each in buckets)
            compute_s = last.now_s - began.now_s
            # The first bucket's backward time is unknown: assume times in proportion to bucket sizes.
            backward_s = (last.now_s - first.now_s) * total / (total - count) if total > count else 0.0
            alone_s = self._alone_s(began, last)
            backward_s = min(backward_s, compute_s) * (alone_s / compute_s if compute_s else 1.0)
            self._add(StepTime(alone_s, backward_s, now.now_s - began.now_s - alone_s))

    def _alone_s(self, began: _Reading, last: _Reading) -> float:
        """Return the seconds that the computation between two readings takes without an exchange."""
        compute_s, busy_s, delayed_s = (later - sooner for sooner, later in zip(began, last, strict=True))
        if self.sharing is None or busy_s > compute_s:  # the beginning was read before ``sharing`` was known
            return compute_s
        return min(compute_s, max(busy_s, compute_s - delayed_s) + busy_s * max(self.sharing - 1, 0.0))

    def forget(self, uncounted: int = 1) -> None:
        """Discard all times, and don't time the next ``uncounted`` steps.

        The next step is never timed, because its beginning is unknown.
        """
        self._latest.clear()
        self._ended, self._uncounted = None, uncounted - 1

    def restart(self) -> None:
        """Begin the current step again, because it is repeated."""
        self._buckets.clear()
        if self._ended is not None:
            self._ended = self.read()

    def _add(self, step: StepTime) -> None:
        if self._uncounted == 0:
            self._latest.append(step)
        self._uncounted = max(self._uncounted - 1, 0)

    def leave_out(self, seconds: float) -> None:
        """Subtract a pause of ``seconds`` from the time of the current step."""
        if self._ended is not None:
            self._ended = self._ended._replace(now_s=self._ended.now_s + seconds)

    def leave_out_since(self, paused: _Reading) -> None:
        """Subtract the pause since the reading ``paused`` from the time of the current step."""
        if self._ended is not None:
            pairs = zip(self._ended, paused, self.read(), strict=True)
            self._ended = _Reading(*(ended + now - then for ended, then, now in pairs))

    @property
    def median(self) -> StepTime:
        """The medians of the latest steps. At least one step must have been timed."""
        rows = [(each.compute_s, each.backward_s, each.exposed_s) for each in self._latest]
        return StepTime(*map(statistics.median, zip(*rows, strict=True)))

    @property
    def disagreement(self) -> float:
        """The relative scatter of the latest step times (``timing.calibrate.disagreement``)."""
        return disagreement([each.step_s for each in self._latest])


def slowest(rows: Rows) -> StepTime:
    """Return the longest computation and backward times of all ranks, and their shortest waiting time.

    The other ranks wait for the rank that computes longest, so that rank has the shortest waiting time.
    """
    compute_s = max(row[0] for row in rows)
    backward_s = max(row[1] for row in rows)
    return StepTime(compute_s, min(backward_s, compute_s), min(row[2] for row in rows))


RULES = {"DDP": BUCKETS, "FSDP2": SHARDS}
"""The candidate rules, by the kind of run."""
_DIGITS = 4
"""The number of a machine id's hexadecimal digits per float32, which represents four digits exactly."""


@dataclass(frozen=True)
class Observed:
    """Steps of a training run, with the times of the slowest rank in seconds."""

    kind: str  # "DDP" or "FSDP2"
    device: str  # the type of the device that computes
    world: int
    ranks_per_machine: int  # on rank 0's machine
    threads: int  # PyTorch threads in each rank
    steps: int  # in each median
    compute_s: float
    backward_s: float  # 0 if backward waits for each exchange
    exposed_s: float
    counts: tuple[int, ...]  # the floats of each gradient bucket, in the order of exchange
    gathers: tuple[int, ...] = ()  # the floats of each all-gather of weights in a step
    line: Line | None = None  # the slowest link between neighbours
    # excerpts of rank 0's gradients of a few steps, 1-D float32 on the CPU
    gradients: tuple[torch.Tensor, ...] = ()
    attached: str | None = None  # the spec of the codec that exchanged the gradients; None without gradwire
    scatter: float = 0.0  # the largest scatter of a rank's step times (``StepTimes.disagreement``)

    @property
    def step_s(self) -> float:
        """The seconds of a step."""
        return self.compute_s + self.exposed_s

    @property
    def rules(self) -> CandidateRules:
        """The candidate rules of this kind of run."""
        return RULES[self.kind]

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
        """Return the content of a file of observed steps, for ``write_files`` and ``replace_file``."""
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
        except Exception as error:  # torch.load may raise any exception for a damaged file
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"expected a readable file of observed steps, got {path}: {reason}; run 'gradwire profile' "
                "again"
            ) from error
        source = Source(f"the observation {path}", "run 'gradwire profile' again", DataError)
        gradients = rows(tensor_of(torch.float32, None))
        line = optional(of(Line, nbytes_per_s=real(0.0, finite=False)))
        return source.read(content, of(cls, kind=one_of(*RULES), gradients=gradients, line=line))


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
    """Return the observation of all ranks' steps, with the times of the slowest rank. All ranks call this.

    The links are measured unless ``line`` is given. The counts and gradients are this rank's.
    """
    median, scatter = steps.times.median, steps.times.disagreement
    row = [*astuple(median), scatter, *_machine()]
    if line is None:
        gather(exchange, [0.0], timeout_s)  # ranks may be late, and the measurement has a shorter timeout
        link = exchange.link
        own_line = measure_line(hosts_of(link), link.rank, DEFAULT.attaching_piece_s)
        row += at_once(own_line, exchange)
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
        **asdict(longest(rows)),
    )


def longest(rows: Rows) -> StepTime:
    """Return the longest step of all ranks, with the longest computation and backward times.

    The seconds of the step beyond computation are waiting time, because all ranks end a step together.
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
    """Return the number of floats to keep of each tensor: in proportion to its size, ``most`` in total."""
    total = sum(counts)
    return list(counts) if total <= most else [count * most // total for count in counts]


def stretch(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return a 1-D copy of the middle ``count`` values, or of all values if fewer, on the same device."""
    flat = (values if values.layout is torch.strided else values.to_dense()).detach().reshape(-1)
    begin = max(0, flat.numel() - count) // 2
    return flat[begin : begin + count].clone()


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Wait for the device, and return the concatenated excerpts, 1-D float32 on the CPU."""
    return torch.cat([part.to(device="cpu", dtype=torch.float32) for part in parts])
