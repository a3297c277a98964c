"""Layers that live on the device: their masters are the replica's weights, beside the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gradwire.devices import Device, Simulated, on_host
from gradwire.errors import SpecError, shown
from gradwire.training.offload.layers import Layer
from gradwire.units import is_number


def split_layers(layers: Sequence[Layer], fraction: float) -> tuple[list[Layer], list[Layer]]:
    """Return the layers on the host, and those on the device.

    From the first layer on, each is the device's whose bytes still fit into ``1 - fraction`` of all: a
    forward pass needs the first layers first, and backward brings their gradients last. Raises ``SpecError``.
    """
    if isinstance(fraction, bool) or not is_number(fraction) or not 0 <= fraction <= 1:
        raise SpecError(f"fraction must be a number from 0 to 1, but is {shown(fraction)}")
    room = (1 - fraction) * sum(each.count for each in layers)
    hosts, residents = list[Layer](), list[Layer]()
    for each in layers:
        fits = each.count <= room
        (residents if fits else hosts).append(each)
        room -= each.count if fits else 0
    return hosts, residents


class Residents:
    """Those of the device, where the replica reads the masters themselves; ``close`` brings them to the host.

    Parameters
    ----------
    layers
        Their replicas hold what the masters held, and leave their places to them.
    optimizer
        Whose state for these masters moves along, also when it loads another.
    device
        Where the replicas live.
    """

    def __init__(self, layers: Sequence[Layer], optimizer: torch.optim.Optimizer, device: Device) -> None:
        self._layers, self._optimizer, self._device = layers, optimizer, device
        self._move_state(self._to_device)
        for each in layers:
            for master, replica in zip(each.masters, each.replicas, strict=True):
                master.data, master.grad = replica.data, None
                _exchange(each, replica, master)
        self._hook = optimizer.register_load_state_dict_post_hook(
            lambda *_: self._move_state(self._to_device)
        )

    def close(self) -> None:
        """Let all live on the host again."""
        self._hook.remove()
        self._move_state(on_host)
        for each in self._layers:
            for master, replica in zip(each.masters, each.replicas, strict=True):
                gradient, master.grad = master.grad, None
                master.data = on_host(master).clone()
                master.grad = None if gradient is None else on_host(gradient)
                _exchange(each, master, replica)

    def _move_state(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Move all but numbers, such as counts of steps, which optimizers keep on the host."""
        masters = [master for each in self._layers for master in each.masters]
        states: list[dict[str, Any]] = [
            self._optimizer.state[each] for each in masters if each in self._optimizer.state
        ]
        moved = [
            {
                name: move(each)
                for name, each in state.items()
                if isinstance(each, torch.Tensor) and each.dim()
            }
            for state in states
        ]
        for state, new in zip(states, moved, strict=True):
            state.update(new)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(self._device, Simulated):
            return self._device.own(on_host(tensor).clone())
        return tensor.to(self._layers[0].replicas[0].device)


def _exchange(layer: Layer, old: nn.Parameter, new: nn.Parameter) -> None:
    """Let the replica's modules read another parameter."""
    for module in layer.readers:
        for name in [name for name, each in module.named_parameters(recurse=False) if each is old]:
            setattr(module, name, new)
