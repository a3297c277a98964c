"""One run on one rank, with the same epochs, shuffles, and learning rates for every method."""

from __future__ import annotations

import hashlib
import math
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import Store

from gradwire.ddp.attach import attach
from gradwire.entropy.delta import WordName
from gradwire.errors import JobError
from gradwire.launch.local import RankContext
from gradwire.launch.rendezvous import gather, in_words, wait_for
from gradwire.links.process_group import ProcessGroupLink
from gradwire.links.throttle import throttled
from gradwire.local import DSync
from gradwire.pipe.pipe_sgd import PipeSGD
from gradwire.sharded import Sharded
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.method import WorkerMethod
from gradwire_lab.job.batches import build, learning_rate, lengths, share, shuffle
from gradwire_lab.job.data import Dataset
from gradwire_lab.job.on_ddp import OnDDP, bf16_hook
from gradwire_lab.job.options import ON_DDP, JobOptions, Run
from gradwire_lab.job.record import Epoch, EpochDone, Progress, RunDone, RunResult, RunStarted, StepDone
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker

REPORT_EVERY_S = 0.1
REHEARSALS = 2


# The processes of a job: ranks 0..p-1 are the workers; rank p is the server, if a run has one.
#
# Training uses links. The team's own collectives (barriers, sums, hashes) are never timed.


class Team:
    """One rank's membership in a job's process groups.

    All ranks, including the server, create the same groups in the same order. Every run has a group for its
    link, and a group for the team's collectives. The default group must exist.
    """

    def __init__(self, store: Store, rank: int, options: JobOptions) -> None:
        self.rank, self.workers, self.timeout_s = rank, options.workers, options.timeout_s
        self._store = store
        limit = timedelta(seconds=options.timeout_s)
        with in_words(f"rank {rank} could not meet the other {options.world - 1} ranks", options.timeout_s):
            self._groups = {run: self._make_groups(run, limit) for run in options.runs}

    @property
    def is_server(self) -> bool:
        """Whether this rank is the server."""
        return self.rank == self.workers

    def takes_part(self, run: Run) -> bool:
        """Return whether this rank takes part in ``run``. The server is idle in runs without a server."""
        return run.method == "server" or not self.is_server

    def link_group(self, run: Run) -> tuple[dist.ProcessGroup, list[int]]:
        """Return the group of a run's link, and the global ranks in the link's order, the server first."""
        return self._groups[run][0], self._members(run)

    def barrier(self, run: Run) -> None:
        """Wait until all ranks of the run reach this barrier. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} waited for the other ranks between two epochs", self.timeout_s):
            gather(self._words(run), torch.zeros(1))

    def gather(self, run: Run, values: torch.Tensor) -> torch.Tensor:
        """Return all ranks' ``values`` (1-D, equal lengths), one row per rank. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} collected results", self.timeout_s):
            return gather(self._words(run), values)

    def _members(self, run: Run) -> list[int]:
        server = [self.workers] if run.method == "server" else []
        return [*server, *range(self.workers)]

    def _make_groups(self, run: Run, limit: timedelta) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        members = sorted(self._members(run))
        return dist.new_group(members, timeout=limit), dist.new_group(members, timeout=limit)

    def _words(self, run: Run) -> dist.ProcessGroup:
        return self._groups[run][1]

    def announce(self, word: str) -> None:
        """Wake the ranks that ``wait_for`` this word."""
        self._store.set(word, "1")

    def wait_for(self, word: str) -> None:
        """Block until another rank announces ``word``, without a time limit.

        A limit would need the length of a run, which is unknown. Raises ``LinkError`` if the store's host
        goes away.
        """
        with in_words(f"rank {self.rank} waited for its next run", self.timeout_s):
            wait_for(self._store, word)


@dataclass(frozen=True)
class Job:
    """The options, data set, and process groups that all runs of a rank share."""

    options: JobOptions
    dataset: Dataset
    team: Team
    context: RankContext[Progress]


def perform(run: Run, job: Job) -> None:
    """Train from scratch, evaluate, compare the ranks' weights, and report. Raises ``GradwireError``."""
    if not job.team.takes_part(run):
        job.team.wait_for(str(run))
        return
    steps, per_epoch = job.options.steps(job.dataset), job.options.steps_per_epoch(job.dataset)
    if job.team.rank == 0:
        job.context.report(RunStarted(run, steps, len(lengths(steps, per_epoch))))
    with ExitStack() as stack:
        result = _train(_Side(run, job, stack), lengths(steps, job.options.evaluate_every or per_epoch))
    if job.team.rank == 0:
        job.context.report(RunDone(result))
        job.team.announce(str(run))


class _Side:
    """One rank's side of a run: its replica of the model, and its method."""

    def __init__(self, run: Run, job: Job, stack: ExitStack) -> None:
        self.run, self.job = run, job
        options, dataset = job.options, job.dataset
        self.model = build(options.model, dataset.image_shape, dataset.classes, options.seed)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=options.lr, momentum=options.momentum)
        self._order = torch.arange(len(dataset.train_labels))
        self._net, self._steps_done = self.model, 0
        self._steps = options.steps(dataset)
        self._steps_per_epoch = options.steps_per_epoch(dataset)
        if not job.team.is_server:  # so that memory and kernels exist before timing; no weights change
            for _ in range(REHEARSALS):
                self._loss(0).backward()  # type: ignore[no-untyped-call]
            self._optimizer.zero_grad()
        self.method = _make_method(run, job, self.model, self._optimizer, stack)
        if isinstance(self.method, OnDDP):  # DDP has copied rank 0's weights
            self._net = self.method.ddp
        else:
            self.method.synchronise()

    def train(self, length: int) -> tuple[StepRecord, float]:
        """Run ``length`` steps and drain, and return their total record and the wall-clock seconds."""
        team = self.job.team
        self.job.context.doing = f"{self.run.label}, before step {self._steps_done + 1}"
        team.barrier(self.run)
        started = perf_counter()
        if isinstance(self.method, StaleServer):
            self.job.context.doing = f"{self.run.label}, after step {self._steps_done}"
            self._steps_done += length
            total = self.method.serve(length, self._set_learning_rate)
        else:
            total = self._take_steps(self.method, length)
        team.barrier(self.run)
        return total, perf_counter() - started

    @torch.inference_mode()
    def evaluate(self, loss: float, train_s: float) -> Epoch:
        """Evaluate the weights on the test set. ``loss`` is the mean training loss."""
        self.job.context.doing = f"{self.run.label}, evaluation"
        right, total = 0, 0.0
        for images, labels in self.job.dataset.test_batches():
            logits = self.model(images)
            right += int((logits.argmax(dim=1) == labels).sum())
            total += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        count = len(self.job.dataset.test_labels)
        epoch = math.ceil(self._steps_done / self._steps_per_epoch)
        return Epoch(epoch, right / count, loss, train_s, self._steps_done, total / count)

    def _take_steps(self, method: WorkerMethod | OnDDP | Server, length: int) -> StepRecord:
        total, told = StepRecord(), perf_counter()
        for _ in range(length):
            total += self._step(method)
            if self.job.team.rank == 0 and perf_counter() - told > REPORT_EVERY_S:
                told = perf_counter()
                self.job.context.report(StepDone(self.run, self._steps_done))
        return total if isinstance(method, Server) else total + method.drain()

    def _set_learning_rate(self, step: int) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(step, self._steps, self.job.options.lr, self.job.options.schedule)

    def _step(self, method: WorkerMethod | OnDDP | Server) -> StepRecord:
        self.job.context.doing = f"{self.run.label}, step {self._steps_done + 1}"
        self._set_learning_rate(self._steps_done)
        number = self._steps_done % self._steps_per_epoch
        self._steps_done += 1
        return method.step() if isinstance(method, Server) else method.step(lambda: self._loss(number))

    def _loss(self, number: int) -> torch.Tensor:
        """Return the loss on this rank's share of batch ``number``; batch 0 shuffles the images first."""
        team = self.job.team
        if number == 0:
            epoch = math.ceil(self._steps_done / self._steps_per_epoch)
            self._order = shuffle(len(self.job.dataset.train_labels), self.job.options.seed, epoch)
        mine = share(self._order, number, self.job.options.batch, team.rank, team.workers)
        images, labels = self.job.dataset.train_batch(mine)
        return nn.functional.cross_entropy(self._net(images), labels)


def _train(side: _Side, counts: list[int]) -> RunResult:
    """Train and evaluate. The result is the same on every rank, but only rank 0's result has epochs."""
    team, run = side.job.team, side.run
    total, train_s = StepRecord(), 0.0
    epochs: list[Epoch] = []
    for count in counts:
        record, seconds = side.train(count)
        total, train_s = total + record, train_s + seconds
        if team.rank == 0:
            epochs.append(side.evaluate(record.loss, train_s))
            side.job.context.report(EpochDone(run, epochs[-1]))
    if isinstance(side.method, WorkerMethod | OnDDP):
        side.method.close()
    weights, steps = _same_weights(side), sum(counts)
    figures = [total.compute_s, total.codec_s, total.exposed_s, total.cost.raw_nbytes, total.cost.wire_nbytes]
    ranks = team.gather(run, torch.tensor(figures, dtype=torch.float64))
    compute_s, codec_s, exposed_s = (ranks[: team.workers, :3].mean(dim=0) / steps).tolist()
    decisions = side.method.decisions if isinstance(side.method, WorkerMethod | OnDDP) else []
    return RunResult(
        run=run,
        steps=steps,
        epochs=tuple(epochs),
        compute_s=compute_s,
        codec_s=codec_s,
        exposed_s=exposed_s,
        raw_nbytes=int(ranks[:, 3].sum()),
        wire_nbytes=int(ranks[:, 4].sum()),
        weights_sha256=weights,
        decided=tuple((step, each.reason) for step, each in decisions),
    )


def _same_weights(side: _Side) -> str:
    """Return the hash of the final weights. Raises ``JobError`` unless all ranks have the same weights.

    A server keeps exact weights. If its workers receive rounded weights, only the workers are compared.
    """
    digest, job = hashlib.sha256(), side.job
    for parameter in side.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    own = digest.digest()
    rows = job.team.gather(side.run, torch.tensor(list(own), dtype=torch.uint8))
    if not job.options.exact_weights:
        rows = rows[: job.team.workers]
    different = [rank for rank, row in enumerate(rows) if bytes(row.tolist()) != bytes(rows[0].tolist())]
    if different:
        raise JobError(
            f"{side.run.label}: expected bit-identical final weights on all ranks, but rank {different[0]} "
            "differs from rank 0; please report this bug"
        )
    return own.hex()


def _on_ddp(run: Run, job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> OnDDP:
    group, timeout_s = job.team.link_group(run)[0], job.options.timeout_s
    if run.method == "ddp":
        return OnDDP(model, optimizer, group=group, timeout_s=timeout_s)
    if run.method == "bf16-hook":
        return OnDDP(model, optimizer, bf16_hook, group, float_nbytes=2, timeout_s=timeout_s)
    plan = job.options.plan_or_auto(run)
    return OnDDP(model, optimizer, lambda ddp: attach(ddp, plan, timeout_s=timeout_s), group)


def _make_method(
    run: Run, job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, stack: ExitStack
) -> WorkerMethod | OnDDP | Server | StaleServer:
    """Return the run's training method, and register its link's ``close`` with ``stack``."""
    if run.method in ON_DDP:
        return _on_ddp(run, job, model, optimizer)
    options, (group, ranks) = job.options, job.team.link_group(run)
    link = throttled(ProcessGroupLink(group, ranks, options.timeout_s, options.exchange.tos), options.link)
    stack.callback(link.close)
    if run.method == "sync":
        return DSync(model, optimizer, options.plan_or_auto(run), group=link)
    plan = options.plan(run)
    if run.method == "sharded":
        words: WordName = "fp32" if options.weights == "delta:fp32" else "bf16"
        return Sharded(model, optimizer, plan, replicas=words, group=link)
    if run.method == "pipe":
        warmup_steps = options.warmup_epochs * options.steps_per_epoch(job.dataset)
        how, chosen = options.correction, options.plan_or_auto(run)
        return PipeSGD(model, optimizer, chosen, warmup_steps=warmup_steps, correction=how, group=link)
    serves, weights = job.team.is_server, options.weights
    if run.staleness is None:
        if serves:
            return Server(model, optimizer, plan, weights, group=link)
        return Worker(model, plan, weights, group=link)
    if serves:
        return StaleServer(model, optimizer, plan, run.staleness, weights, group=link)
    return StaleWorker(model, plan, run.staleness, weights, group=link)
