"""Sums of gradients in the order of the devices, whichever device is faster."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

Arrival = tuple[int, nn.Parameter, torch.Tensor]
"""The number of a device, a master, and its gradient from there."""


@dataclass
class _Open:
    """A master's gradient to which an earlier device may still add.

    Attributes
    ----------
    total, version
        The master's gradient, and its version after the last addition.
    base
        The gradient before the first of ``added``.
    added
        What devices have brought, in their order.
    """

    total: torch.Tensor
    version: int
    base: torch.Tensor | None
    added: list[tuple[int, torch.Tensor]]


class GradientSums:
    """Adds gradients to those of the masters. Any thread may call it.

    A round has at most one backward pass of each device, and ends with ``optimizer.step()``. Within a round,
    gradients are added in the order of the devices, also if a later device's come first. So the sum has the
    same bits whichever of several threads is faster.

    Parameters
    ----------
    devices
        How many there are.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._lock = threading.Lock()
        self._round = set[int]()
        self._open = dict[nn.Parameter, _Open]()
        self._touched = set[nn.Parameter]()

    def end_round(self) -> None:
        """Let the next gradients be added behind those that are there."""
        with self._lock:
            self._clear()

    def add(self, arrivals: Sequence[Arrival], devices: Collection[int]) -> None:
        """Add what one backward pass on these devices has brought."""
        with self._lock, torch.no_grad():
            if not self._round.isdisjoint(devices) or all(each.grad is None for each in self._touched):
                self._clear()
            self._round.update(devices)
            for device, master, gradient in sorted(arrivals, key=lambda each: each[0]):
                self._add(device, master, gradient)
                self._touched.add(master)
            if len(self._round) == self._devices:
                self._clear()

    def _clear(self) -> None:
        self._round.clear()
        self._open.clear()
        self._touched.clear()

    def _add(self, device: int, master: nn.Parameter, gradient: torch.Tensor) -> None:
        before = self._open.pop(master, None)
        if before is not None and (
            master.grad is not before.total or before.total._version != before.version
        ):
            before = None  # zeroed, or clipped, meanwhile
        if before is None and self._round.issuperset(range(device)):
            _accumulate(master, gradient)
            return
        if before is None:
            base = None if master.grad is None else master.grad.clone()
            before = _Open(gradient, 0, base, [])
        place = sum(other <= device for other, _ in before.added)
        before.added.insert(place, (device, gradient))
        if place + 1 < len(before.added):
            _rebuild(master, before)
        else:
            _accumulate(master, gradient.clone() if master.grad is None else gradient)
        assert master.grad is not None
        before.total, before.version = master.grad, master.grad._version
        self._open[master] = before


def _accumulate(master: nn.Parameter, gradient: torch.Tensor) -> None:
    if master.grad is None:
        master.grad = gradient
    else:
        master.grad.add_(gradient)


def _rebuild(master: nn.Parameter, found: _Open) -> None:
    """Add all again, in their order."""
    terms = [each for each in (found.base, *(each for _, each in found.added)) if each is not None]
    total = terms[0].clone()
    for each in terms[1:]:
        total.add_(each)
    assert master.grad is not None
    master.grad.copy_(total)
