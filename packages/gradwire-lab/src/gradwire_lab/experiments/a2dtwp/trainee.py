"""A training run with a policy, on a simulated device with a published system's link.

A *cycle* is an update, a transfer to the device, a forward, and a backward pass. It is timed on only one
system's link, because a policy's weights don't depend on the link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradwire.codecs import parse
from gradwire.codecs.truncate import BitPack
from gradwire.offload import awp
from gradwire.offload.carriers import Bits, Carrier, aligned
from gradwire.offload.host_offload import HostOffload
from gradwire.offload.policies import Policy, policy_of
from gradwire.offload.replicas import DeviceEnd
from gradwire_lab.experiments.a2dtwp.models import blocks_of
from gradwire_lab.experiments.a2dtwp.options import AWP, AWP_FORMATS, BF16, FP32, SYSTEMS
from gradwire_lab.simulated_device.simulated import Simulated

WAITS = ("exposed_s", "unpack_s", "gradient_wait_s")
"""The waits of the training thread in a cycle, during which the thread doesn't compute."""

Batch = tuple[torch.Tensor, torch.Tensor]
Model = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Learner:
    """The parts of a training run: its weights and updates, a batch's loss, and the held-out error."""

    masters: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    loss: Callable[[Model, Batch], torch.Tensor]
    error: Callable[[Model], float]


class Trainee:
    """A training run with one policy, on the links of some systems in turn.

    Sending ``nbytes`` (by default, all weights) takes the published time. ``errors`` has (batches, error).
    """

    def __init__(
        self, learner: Learner, policy: Policy, systems: Sequence[str], nbytes: int | None = None
    ) -> None:
        self._learner, self._device = learner, Simulated(prompt=True)
        blocks, run = blocks_of(learner.masters), (learner.masters, learner.optimizer, policy)
        self._offload = HostOffload(*run, device=self._device, blocks=blocks, timed=True)
        self._nbytes = 4 * self._count if nbytes is None else nbytes
        self.errors: list[tuple[int, float]] = []
        self._cycles: dict[str, list[dict[str, float]]] = {name: [] for name in systems}

    def begin(self, batch: Batch) -> None:
        """Compute the gradients with which the first cycle starts."""
        self._pass(batch, 0)

    def cycle(self, number: int, batch: Batch, compute_s: float) -> None:
        """Update the weights, and train on the batch of this number, over one of the links."""
        system = [*self._cycles][number % len(self._cycles)]
        rates = link_rates(system, compute_s, self._nbytes)
        self._device.pace(*rates)
        before = self._counts()
        began = time.perf_counter()
        self._learner.optimizer.step()
        updated = time.perf_counter()
        self._learner.schedule.step()
        self._learner.optimizer.zero_grad()
        self._pass(batch, number)
        ended = time.perf_counter()
        spent = {name: now - before[name] for name, now in self._counts().items()}
        waited = sum(spent[name] for name in WAITS)
        spent["update_s"], spent["batch_s"] = updated - began, ended - began
        spent["compute_s"] = ended - updated - waited
        back = spent.pop("gradient_nbytes")
        spent["to_host_s"] = back / rates[1] if rates[1] is not None else 0.0
        self._cycles[system].append(spent)

    def evaluate(self, batches: int) -> float:
        """Record and return the error of the device's weights after this many batches."""
        self._device.pace(None, None)
        self._offload.eval()
        with torch.no_grad():
            error = self._learner.error(self._offload)
        self._offload.train()
        self.errors.append((batches, error))
        return error

    def compute_s(self, system: str) -> list[float]:
        """Return the seconds of forward and backward in each cycle on a system's link."""
        return [each["compute_s"] for each in self._cycles[system]]

    def figures(self) -> dict[str, Any]:
        """Return the figures of this training run, for a row of the record."""
        cycles = {
            system: {name: [round(each[name], 6) for each in found] for name in found[0]} if found else {}
            for system, found in self._cycles.items()
        }
        return {
            "parameters": self._count,
            "errors": self.errors,
            "cycles": cycles,
            "layers": self._offload.layer_names,
            "sizes": layer_sizes(self._offload),
            "bits": self._offload.bits_by_batch[-1:],
        }

    def close(self) -> None:
        """Stop the offload's threads."""
        self._offload.close()

    @property
    def _count(self) -> int:
        return sum(each.numel() for each in self._offload.model.parameters())

    def _counts(self) -> dict[str, float]:
        ledger = self._offload.ledger
        seconds = ("norm_s", "pack_s", "packing_cpu_s", "transfer_s", "decode_s", *WAITS)
        found = {name: getattr(ledger, name) for name in seconds}
        total = ledger.total
        return {**found, "sent_nbytes": total.sent_nbytes, "gradient_nbytes": total.gradient_nbytes}

    def _pass(self, batch: Batch, number: int) -> None:
        torch.manual_seed(number)  # the same dropout with every policy
        torch.autograd.backward(self._learner.loss(self._offload, batch))


def train_side_by_side(
    trainees: Sequence[Trainee], batches: Iterable[Batch], compute_s: float, every: int
) -> Iterator[int]:
    """Train all trainees on the same batches (the first only gives gradients); yield at each evaluation."""
    number = 0
    for number, batch in enumerate(batches):
        for each in trainees:
            each.cycle(number, batch, compute_s) if number else each.begin(batch)
        if number and number % every == 0:
            yield _evaluated(trainees, number)
    if number % every:
        yield _evaluated(trainees, number)


def _evaluated(trainees: Sequence[Trainee], number: int) -> int:
    for each in trainees:
        each.evaluate(number)
    return number


def link_rates(system: str, compute_s: float, nbytes: int) -> tuple[float | None, float | None]:
    """Return bytes per second to the device and back, in the published proportion; None is unlimited."""
    published = SYSTEMS[system]
    unit_s = compute_s / published.compute_ms

    def rate(copy_ms: float) -> float | None:
        return nbytes / (unit_s * copy_ms) if copy_ms else None

    return rate(published.to_device_ms), rate(published.to_host_ms)


def layer_sizes(offload: HostOffload) -> list[int]:
    """Return the number of values sent with each layer."""
    sent = [offload.ledger.layers[name] for name in offload.layer_names]
    return [each.float32_nbytes // (4 * each.sends) for each in sent]


# The policies under comparison, by name.

NEVER = -1.0
"""A threshold below every possible change of a norm."""


def policy_named(name: str, interval: int = 1, watched: int | None = None) -> Policy:
    """Return a policy of the experiment. ``interval`` and ``watched`` batches apply to AWP only."""
    if name == BF16:
        return Rounded()
    if name == AWP:
        return awp.AWP(threshold=awp.AUTO, interval=interval, watched=watched)
    if name in AWP_FORMATS:
        bits = AWP_FORMATS[name]
        return awp.AWP(threshold=NEVER, interval=1, start_bits=bits, max_bits=bits)
    return policy_of("static:32" if name == FP32 else name)


class Rounded(Policy):
    """The usual policy, which sends every weight as bfloat16, rounded to nearest even."""

    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return 16 bits for each layer."""
        return [16] * len(norms)

    def carrier(self, ends: Sequence[DeviceEnd]) -> Carrier:
        """Return a carrier of rounded weights."""
        return RoundedCarrier(ends)


class RoundedCarrier(Carrier):
    """A carrier that sends weights as bfloat16. The device converts them to float32."""

    def __init__(self, ends: Sequence[DeviceEnd]) -> None:
        super().__init__(ends, [each.nbytes for each in ends[0].masters])
        self._codec, self._whole_codec = parse("bf16"), BitPack(4)

    def pack(self, bits: Bits, *, full: bool) -> int:  # noqa: ARG002 - all messages have the same format
        """Encode the weights in ``bits`` into the host's buffer, and return the number of bytes used."""
        self.spans, end = {}, 0
        for number in bits:
            master, begin = self._masters[number], aligned(end)
            codec = self._codec if master.dim() > 1 else self._whole_codec
            end = begin + codec.encode(master.detach().reshape(-1), self.host[begin:]).numel()
            self.spans[number] = begin, end
        return end

    def _unpack(self, end: int, number: int, span: tuple[int, int], replica: torch.Tensor) -> None:  # noqa: ARG002
        payload = self.on_device[end][slice(*span)]
        replica.copy_(payload.view(torch.bfloat16).view(replica.shape))
