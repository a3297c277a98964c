"""Pipe-SGD and its corrections, simulated: p workers in one process, exact averages, no network.

At step t, the averages of the steps up to t-K have been applied to the weights ``w`` and the optimizer's
state ``s``, in order, each with its own step's learning rate; the averages of the steps t-K+1 to t-1 are in
flight. A variant chooses a guess ``h_r[i]`` for each average in flight, and rank r computes its gradient at
the weights that would result if the guesses were right:

    v_r[t] = w + update(h_r[t-K+1]) + ... + update(h_r[t-1])        with a copy of s, discarded afterwards
    g_r[t] = gradient of rank r's batch at v_r[t],   avg[t] = mean over r of g_r[t]

Nothing here uses gradwire: optimizers are pure functions of one flat vector, so that gradwire's own
implementation can be compared with these functions. If a task clips, guesses and averages are clipped, each
by its own norm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

Batch = tuple[torch.Tensor, torch.Tensor]
State = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class SGD:
    """``u = momentum u + g``, ``w -= lr (of_velocity u + of_gradient g)``; by default, torch's ``SGD``."""

    momentum: float
    of_velocity: float = 1.0
    of_gradient: float = 0.0
    state_copies: ClassVar[int] = 1

    def start(self, weights: torch.Tensor) -> State:
        """Return the initial state: zeros."""
        return (torch.zeros_like(weights),)

    def step(
        self, weights: torch.Tensor, state: State, gradient: torch.Tensor, lr: float
    ) -> tuple[torch.Tensor, State]:
        """Return weights and state after a step."""
        velocity = self.momentum * state[0] + gradient
        return weights - lr * (self.of_velocity * velocity + self.of_gradient * gradient), (velocity,)

    def mean(self, state: State) -> torch.Tensor:
        """Return the running mean of the gradients; a step with this mean leaves the velocity unchanged."""
        return (1 - self.momentum) * state[0]

    def spread(self, delay: int) -> SGD:
        """Return the optimizer for the updates of ``Spike``."""
        kept = self.momentum**delay
        return replace(self, of_velocity=kept, of_gradient=(1 - kept) / (1 - self.momentum))


@dataclass(frozen=True)
class AdamW:
    """torch's ``AdamW``; without decay, its ``Adam``."""

    decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    state_copies: ClassVar[int] = 2

    def start(self, weights: torch.Tensor) -> State:
        """Return the initial state: zeros."""
        return torch.zeros_like(weights), torch.zeros_like(weights), torch.zeros(())

    def step(
        self, weights: torch.Tensor, state: State, gradient: torch.Tensor, lr: float
    ) -> tuple[torch.Tensor, State]:
        """Return weights and state after a step."""
        mean = state[0].lerp(gradient, 1 - self.betas[0])
        square = self.betas[1] * state[1] + (1 - self.betas[1]) * gradient.square()
        after: State = (mean, square, state[2] + 1)
        root = (square / (1 - self.betas[1] ** float(after[2]))).sqrt_().add_(self.eps)
        return weights * (1 - lr * self.decay) - lr * self.mean(after) / root, after

    def mean(self, state: State) -> torch.Tensor:
        """Return the unbiased running mean of the gradients; 0 before the first gradient."""
        count = float(state[2])
        return state[0] / (1 - self.betas[0] ** count) if count else state[0]


Optimizer = SGD | AdamW


@dataclass(frozen=True)
class Task:
    """One training run; ``weights`` are the initial weights, flat in the order of the model's parameters."""

    title: str
    model: nn.Module
    weights: torch.Tensor
    batches: Sequence[Iterator[Batch]]
    held_out: Sequence[Batch]
    optimizer: Optimizer
    rate: Callable[[int], float]
    steps: int
    max_norm: float = float("inf")
    expecting: Iterator[Batch] | None = None
    """Large batches from all ranks' training data, for tasks with the variant ``Expected``."""

    def gradient(self, weights: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the gradient of the mean cross entropy, flat."""
        parts = torch.autograd.grad(self._loss(weights, batch), list(self.model.parameters()))
        return torch.cat([part.flatten() for part in parts])

    def held_out_loss(self, weights: torch.Tensor) -> float:
        """Return the mean loss on the held-out data, whose batches have equal sizes."""
        with torch.no_grad():
            return float(sum(self._loss(weights, batch) for batch in self.held_out)) / len(self.held_out)

    def clip(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient with a norm of at most ``max_norm``, as from ``clip_grad_norm_``."""
        if self.max_norm == float("inf"):
            return gradient
        return gradient * min(1.0, self.max_norm / (float(gradient.norm()) + 1e-6))

    def _loss(self, weights: torch.Tensor, batch: Batch) -> torch.Tensor:
        vector_to_parameters(weights, self.model.parameters())  # views, no copy
        logits = self.model(batch[0])
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[1].reshape(-1))


@dataclass(frozen=True)
class Sent:
    """A step's gradients: each rank's ``own`` (empty unless ranks need them), their average, and the rate."""

    average: torch.Tensor
    own: list[torch.Tensor]
    rate: float
    weights: torch.Tensor
    """The weights, without guesses, at which the gradients were computed."""


class Stale:
    """The paper's variant: no guesses; the gradient is computed at ``w``.

    Li et al., Pipe-SGD, NeurIPS 2018, algorithm 1. The other variants override parts of this class.
    """

    virtual: bool = False
    """Whether this variant guesses averages."""
    local: bool = False
    """Whether the guesses use the ranks' own gradients."""
    memory = (0, 0, 0)
    """Extra vectors: fixed, per vector of the optimizer's state, and per step in flight."""

    def __init__(self, task: Task, pipeline: int) -> None:
        self.task = task
        self.pipeline = pipeline
        self.optimizer = task.optimizer
        self.weights = task.weights
        self.state = self.optimizer.start(task.weights)
        self.under_way: deque[Sent] = deque()
        self.last: Sent | None = None
        """The most recently applied step."""

    def guesses(self, _rank: int) -> list[torch.Tensor]:
        """Return substitutes for the averages in flight, oldest first; missing substitutes are omitted."""
        return []

    def arrived(self, sent: Sent) -> torch.Tensor:
        """Return the gradient to apply for an average."""
        return sent.average

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.task.rate(step)

    def extra_memory(self) -> int:
        """Return the model-sized vectors that a rank keeps in addition to ``Stale``."""
        fixed, per_state, per_step = self.memory
        return fixed + per_state * self.optimizer.state_copies + per_step * (self.pipeline - 1)

    def extra_updates(self) -> int:
        """Return the optimizer steps per step in addition to ``Stale``."""
        return self.pipeline - 1 if self.virtual else 0

    def train(self) -> torch.Tensor:
        """Train for all steps, apply the averages in flight, and return the weights."""
        for step in range(1, self.task.steps + 1):
            self.step(step)
        while self.under_way:
            self._apply_oldest()
        return self.weights

    def step(self, number: int) -> None:
        """Apply the average of K steps ago, and compute a gradient on every rank."""
        if len(self.under_way) == self.pipeline:
            self._apply_oldest()
        batches = [next(each) for each in self.task.batches]
        own = []
        if self.local:
            points = [self._virtual(rank) for rank in range(len(batches))]
            own = [self.task.gradient(*each) for each in zip(points, batches, strict=True)]
            average = torch.stack(own).mean(0)
        else:  # all ranks compute at the same weights, so the average is the gradient of the joined batch
            inputs, targets = zip(*batches, strict=True)
            average = self.task.gradient(self._virtual(0), (torch.cat(inputs), torch.cat(targets)))
        self.under_way.append(Sent(average, own, self.rate(number), self.weights))

    def _virtual(self, rank: int) -> torch.Tensor:
        weights, state = self.weights, self.state
        for sent, guess in zip(self.under_way, self.guesses(rank), strict=False):
            weights, state = self.optimizer.step(weights, state, self.task.clip(guess), sent.rate)
        return weights

    def _apply_oldest(self) -> None:
        sent = self.last = self.under_way.popleft()
        gradient = self.task.clip(self.arrived(sent))
        self.weights, self.state = self.optimizer.step(self.weights, self.state, gradient, sent.rate)


class Synchronous(Stale):
    """Synchronous SGD: no average is in flight while a gradient is computed; K = 1."""

    def __init__(self, task: Task, _pipeline: int) -> None:
        super().__init__(task, 1)


class Slower(Stale):
    """``lr / K``: Zhang et al., Staleness-aware Async-SGD, IJCAI 2016, divide the rate by the staleness."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return super().rate(step) / self.pipeline


class Spike(Stale):
    """An update that adds momentum's contributions of ``g`` in the K-1 missed steps.

    ``w -= lr * (m^D u + (1 - m^D) / (1 - m) g)`` with D = K-1; for K = 2, this is Nesterov's momentum. Spike
    compensation: Kosson et al., Pipelined Backpropagation at Scale, MLSys 2021. For SGD with momentum only.
    """

    def __init__(self, task: Task, pipeline: int) -> None:
        super().__init__(task, pipeline)
        assert isinstance(self.optimizer, SGD)
        self.optimizer = self.optimizer.spread(pipeline - 1)


class Delayed(Stale):
    """A first-order correction of the stale average at its application: ``g + lambda g g (w_now - w_then)``.

    ``g g``, elementwise, approximates the diagonal of the Hessian. DC-ASGD: Zheng et al., Asynchronous
    Stochastic Gradient Descent with Delay Compensation, ICML 2017.
    """

    memory = (0, 0, 1)  # the weights at which the gradient was computed

    def __init__(self, task: Task, pipeline: int, strength: float) -> None:
        super().__init__(task, pipeline)
        self.strength = strength

    def arrived(self, sent: Sent) -> torch.Tensor:
        """Return the corrected average."""
        g = sent.average
        return g + self.scale(g) * g * g * (self.weights - sent.weights)

    def scale(self, _gradient: torch.Tensor) -> torch.Tensor | float:
        """Return lambda for a gradient."""
        return self.strength


class AdaptivelyDelayed(Delayed):
    """``Delayed`` with ``lambda / sqrt(MeanSquare)``, a running mean of ``g g``, factor 0.95 (DC-ASGD-a)."""

    memory = (1, 0, 1)

    def __init__(self, task: Task, pipeline: int, strength: float) -> None:
        super().__init__(task, pipeline, strength)
        self.mean_square = torch.zeros_like(task.weights)

    def scale(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return lambda for every element."""
        self.mean_square = self.mean_square.lerp(gradient.square(), 0.05)
        return self.strength / (self.mean_square + 1e-7).sqrt()


class Predict(Stale):
    """Guesses that are the running mean of the applied averages, which the optimizer keeps anyway.

    With momentum, the virtual weights are ``w - (K-1) lr u``: weight prediction, Chen et al., SpecTrain,
    2018; with Adam, the virtual weights are nearly those of Guan et al., XPipe, 2019. No copy of the state is
    needed, because ``u`` doesn't change.
    """

    virtual = True
    memory = (1, 0, 0)  # the virtual weights

    def guesses(self, _rank: int) -> list[torch.Tensor]:
        """Return the running mean, K-1 times."""
        return [self.optimizer.mean(self.state)] * (self.pipeline - 1)


class Extrapolate(Predict):
    """Guesses that are the last applied average: ``h[i] = avg[t-K]``, the same on all ranks."""

    memory = (1, 1, 0)

    def guesses(self, _rank: int) -> list[torch.Tensor]:
        """Return the last average for each step in flight."""
        return [] if self.last is None else [self.last.average] * len(self.under_way)


class Eager(Predict):
    """Guesses that are the rank's own gradients: ``h_r[i] = g_r[i]``."""

    local = True
    memory = (1, 1, 1)  # own gradients are copied, because the exchange averages in place

    def guesses(self, rank: int) -> list[torch.Tensor]:
        """Return the rank's own gradients in flight."""
        return [sent.own[rank] for sent in self.under_way]


class Matched(Eager):
    """``h_r[i] = s g_r[i]``: own gradients, scaled to the average's relative norm in previous steps.

    The noise of one rank's samples makes its gradient longer than the average. ``s`` is a running mean, with
    weight one half for the newest, of ``norm(avg) / norm(g_r)``, at most 1.
    """

    def __init__(self, task: Task, pipeline: int) -> None:
        super().__init__(task, pipeline)
        self.shares: list[float] | None = None

    def guesses(self, rank: int) -> list[torch.Tensor]:
        """Return the rank's own gradients in flight, scaled."""
        share = 1.0 if self.shares is None else self.shares[rank]
        return [share * own for own in super().guesses(rank)]

    def arrived(self, sent: Sent) -> torch.Tensor:
        """Update the ratio of the average's norm to each rank's gradient."""
        length = float(sent.average.norm())
        newest = [min(1.0, length / max(float(own.norm()), 1e-30)) for own in sent.own]
        before = newest if self.shares is None else self.shares
        self.shares = [(old + new) / 2 for old, new in zip(before, newest, strict=True)]
        return super().arrived(sent)


class Expected(Predict):
    """``h[i]`` is ``avg[i]`` without sampling noise: the gradient of a large batch at the same weights.

    No rank can know this gradient. It is the most that a rank could know of other ranks' samples without
    communication, and so a bound for all guesses. For K = 2.
    """

    def __init__(self, task: Task, pipeline: int) -> None:
        super().__init__(task, pipeline)
        self.expected: list[torch.Tensor] = []

    def guesses(self, _rank: int) -> list[torch.Tensor]:
        """Return the expected gradients of the steps in flight."""
        return self.expected

    def step(self, number: int) -> None:
        """Also compute the expectation of this step's average."""
        if len(self.under_way) == self.pipeline:
            self._apply_oldest()
        assert self.task.expecting is not None
        assert self.pipeline == 2
        expected = self.task.gradient(self._virtual(0), next(self.task.expecting))
        super().step(number)
        self.expected = [expected]


class Shift(Eager):
    """``h_r[i] = g_r[i] + (avg[t-K] - g_r[t-K])``: own gradient, plus the average's last difference.

    The control variate of SCAFFOLD (Karimireddy et al., ICML 2020) and SVRG (Johnson and Zhang, NIPS 2013).
    """

    memory = (2, 1, 1)
    share = 1.0

    def guesses(self, rank: int) -> list[torch.Tensor]:
        """Return the own gradients, shifted if an average is known."""
        own, last = super().guesses(rank), self.last
        if last is None:
            return own
        return [last.average + (each - last.own[rank]) * self.share for each in own]


class Replace(Shift):
    """``h_r[i] = avg[t-K] + (g_r[i] - g_r[t-K]) / p``: the last average with the rank's own part updated.

    The table of gradients of SAG (Schmidt, Le Roux and Bach, 2013), with a row for every rank.
    """

    def __init__(self, task: Task, pipeline: int) -> None:
        super().__init__(task, pipeline)
        self.share = 1 / len(task.batches)
