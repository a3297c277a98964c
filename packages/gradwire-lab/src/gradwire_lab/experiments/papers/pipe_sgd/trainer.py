"""One host's part in Pipe-SGD's exhibits: steps and training runs of all methods, computed for real."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch.distributed as dist

from gradwire.codecs import parse
from gradwire.local import DSync
from gradwire.machine import cores, stolen_s
from gradwire.pipe.pipe_sgd import PipeSGD
from gradwire.plan import Plan, bucket_members
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts.ranks import Ranks, undisturbed
from gradwire_lab.experiments.papers.pipe_sgd.tasks import TASKS, OptionValues, RankTask, RankWork
from gradwire_lab.experiments.papers.pipe_sgd.ways import (
    BUCKET_NBYTES,
    LINE,
    MODEL,
    PLAIN,
    TIME,
    TRAIN,
    WAYS,
    TrainingMethod,
)
from gradwire_lab.parameter_server.ps_sync import Server, Worker

SEGMENT_NBYTES = 1 << 24
"""The size of a segment, larger than a gradient: as in equation 5, an exchange isn't pipelined."""
SETTLED = 3
"""The number of steps before the first window, in addition to the steps that fill a pipeline."""
LEAST_WINDOWS = 3
EXCHANGES, EXCHANGES_S = (5, 15), 1.5
"""The least and largest number of separate exchanges, and the seconds for them."""
REPEATS = 21
"""The number of repetitions of an addition and of a barrier, whose medians are used."""


def measure(ranks: Ranks, cells: Sequence[Cell], task: str, options: OptionValues) -> None:
    """Measure the cells of one network, and report a row for each cell."""
    for cell in cells:
        ranks.report(cell, KINDS[cell["kind"]](_Host(ranks, cell, task, options)))


@dataclass(frozen=True)
class _Host:
    """One host's work on one cell."""

    ranks: Ranks
    cell: Cell
    name: str
    options: OptionValues

    @property
    def way(self) -> TrainingMethod:
        return WAYS[self.cell["run"]]

    @property
    def work(self) -> RankWork:
        """The work of this rank. A server is rank 0, and not a worker."""
        has_server = "run" in self.cell and self.way.has_server
        worker, workers = self.ranks.rank - has_server, self.ranks.world - has_server
        return RankWork(self.options, self.cell, worker, workers)

    def task(self) -> RankTask:
        return TASKS[self.name](self.work)

    def gather(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise maximum over all ranks."""
        return [max(each) for each in zip(*self.ranks.gather([*values]), strict=True)]


class RankTrainer:
    """One rank's task, trained with one method."""

    def __init__(self, host: _Host, task: RankTask) -> None:
        self._task, way, link = task, host.way, host.ranks.link
        algorithm = "star" if way.has_server else "ring"
        plan = Plan(parse(way.codec), algorithm, SEGMENT_NBYTES, way.pipeline, way.bucket_nbytes)
        model, optimizer = task.model, task.optimizer
        self._server: Server | None = None
        self._worker: Worker | DSync | PipeSGD
        if way.has_server and link.rank == 0:
            self._server = Server(model, optimizer, plan, group=link)
        elif way.has_server:
            self._worker = Worker(model, plan, group=link)
        elif way.pipeline == 1:
            self._worker = DSync(model, optimizer, plan, group=link)
        else:
            warmup, correction = task.warmup_steps, way.correction
            self._worker = PipeSGD(
                model, optimizer, plan, warmup_steps=warmup, correction=correction, group=link
            )

    def step(self, number: int) -> None:
        """Run a training step. The first step has number 0."""
        for group in self._task.optimizer.param_groups:
            group["lr"] = self._task.rate(number)
        if self._server is not None:
            self._server.step()
        else:
            self._worker.step(lambda: self._task.loss(number))

    def close(self) -> None:
        """Apply the steps in flight, and close the method."""
        method = self._server or self._worker
        method.drain()
        method.close()


def _train(host: _Host) -> Mapping[str, Any]:
    """Train from scratch, and return the last rank's accuracy."""
    task = host.task()
    trainee = RankTrainer(host, task)
    for number in range(host.work.steps):
        trainee.step(number)
    trainee.close()
    is_last = host.ranks.rank == host.ranks.world - 1
    return {"accuracy": host.ranks.gather(task.accuracy() if is_last else None)[-1]}


def _time(host: _Host) -> Mapping[str, Any]:
    """Time steps in consecutive windows, so that a pipeline stays full."""
    task, bucket_nbytes = host.task(), host.way.bucket_nbytes
    trainee = RankTrainer(host, task)
    found = _windows(host, trainee.step, SETTLED + host.way.pipeline)
    trainee.close()
    segments = {} if bucket_nbytes is None else {"segments": len(_segments(task, bucket_nbytes))}
    return {"steps_s": found, **segments}


def _plain(host: _Host) -> Mapping[str, Any]:
    """Time steps without an exchange, on all hosts at the same time."""
    task = host.task()

    def step(number: int) -> None:
        task.optimizer.zero_grad()
        task.loss(number).backward()  # type: ignore[no-untyped-call]
        task.optimizer.step()

    nbytes = sum(each.nbytes for each in task.model.parameters())
    found = {"steps_s": _windows(host, step, SETTLED), "nbytes": nbytes}
    return {**found, "rest_s": _rest_s(host, task)}


def _segments(task: RankTask, bucket_nbytes: int) -> list[range]:
    """Return the segments as ranges of parameter indices."""
    return bucket_members([each.numel() for each in task.model.parameters()], bucket_nbytes)


def _rest_s(host: _Host, task: RankTask) -> float:
    """Return the slowest rank's seconds of backward after the first segment is complete."""
    parameters, ready, rest = list(task.model.parameters()), list[float](), list[float]()

    def note(_: object) -> None:
        ready.append(time.perf_counter())

    first = [parameters[index] for index in _segments(task, BUCKET_NBYTES)[0]]
    hooks = [each.register_post_accumulate_grad_hook(note) for each in first]  # type: ignore[no-untyped-call]
    for number in range(REPEATS):
        task.loss(number).backward()  # type: ignore[no-untyped-call]
        rest.append(time.perf_counter() - ready[-1])
    for hook in hooks:
        hook.remove()
    task.optimizer.zero_grad()
    slowest_s: float = max(host.ranks.gather(median(rest)))
    return slowest_s


def _windows(host: _Host, step: Callable[[int], None], settled: int) -> list[float]:
    """Return the slowest rank's step time in each window that a hypervisor did not disturb."""
    windows, length = host.options["windows"], host.options["window"]
    moments, stolen = list[float](), list[float]()
    for number in range(settled):
        step(number)
    for window in range(windows + 1):
        moments.append(time.perf_counter())
        stolen.append(stolen_s())
        for number in range(length if window < windows else 0):
            step(settled + window * length + number)
    seconds = host.gather([(end - begin) / length for begin, end in pairwise(moments)])
    lost = host.gather([end - begin for begin, end in pairwise(stolen)])
    shares = [each / cores() / (length * step_s) for each, step_s in zip(lost, seconds, strict=True)]
    return undisturbed(sorted(zip(shares, seconds, strict=True)), LEAST_WINDOWS)


def _line(host: _Host) -> Mapping[str, Any]:
    """Time separate exchanges, outside of training."""
    count = sum(each.numel() for each in host.task().model.parameters())
    plan, (least, most) = Plan(parse(host.cell["codec"]), "ring", SEGMENT_NBYTES), EXCHANGES
    return {"exchange_s": host.ranks.time_s(plan, count, EXCHANGES_S, least, most)}


def _model(host: _Host) -> Mapping[str, Any]:
    """Measure alpha and beta of the link, gamma of an addition, and S of a synchronization."""
    ranks = host.ranks
    line = ranks.line()
    count = sum(each.numel() for each in host.task().model.parameters())
    one, other = (ranks.gradient(max(1, count // ranks.world)) for _ in range(2))
    (added_s,) = host.gather([_median_s(lambda: one.add_(other))])
    (met_s,) = host.gather([_median_s(dist.barrier)])
    return {
        "alpha_s": line.latency_s,
        "beta_s_per_nbyte": 1 / (line.nbytes_per_s * line.duplex_share),
        "gamma_s_per_nbyte": added_s / one.nbytes,
        "synchronisation_s": met_s,
    }


def _median_s(call: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return median(found)


KINDS: Mapping[str, Callable[[_Host], Mapping[str, Any]]] = {
    PLAIN: _plain,
    LINE: _line,
    MODEL: _model,
    TIME: _time,
    TRAIN: _train,
}
