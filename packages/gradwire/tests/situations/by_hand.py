"""Pipe-SGD with eager updates, as its page describes it, with torch alone."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Gradients = list[torch.Tensor | None]


@dataclass(frozen=True)
class Record:
    loss: float


class PipeByHand:
    """Waits for every average at once, and applies it ``size`` steps later, at the rate of its own step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, size: int) -> None:
        self._model, self._optimizer, self._size = model, optimizer, size
        self._under_way: list[tuple[Gradients, Gradients, list[dict[str, Any]]]] = []
        self.decisions: list[Any] = []

    def step(self, compute_loss: Callable[[], torch.Tensor]) -> Record:
        while len(self._under_way) >= self._size:
            self._apply()
        parameters = [each for each in self._model.parameters() if each.requires_grad]
        masters = [each.detach().clone() for each in parameters]
        state = copy.deepcopy(self._optimizer.state_dict())
        hooks, self._optimizer._optimizer_step_pre_hooks = (
            self._optimizer._optimizer_step_pre_hooks,
            OrderedDict(),
        )
        for own, _, groups in self._under_way:
            if all(each is None or bool(each.isfinite().all()) for each in own):
                self._update(own, groups)
        self._optimizer._optimizer_step_pre_hooks = hooks
        self._optimizer.load_state_dict(state)
        self._optimizer.zero_grad()
        try:
            loss = compute_loss()
            loss.backward()
        finally:
            with torch.no_grad():
                for each, master in zip(parameters, masters, strict=True):
                    each.copy_(master)
        own = [None if each.grad is None else each.grad.clone().to_dense() for each in self._trained()]
        self._optimizer.zero_grad()
        self._under_way.append((own, _averaged(own, self._trained()), self._groups()))
        return Record(float(loss.detach()))

    @torch.inference_mode(False)
    def drain(self) -> None:
        while self._under_way:
            self._apply()
        for buffer in self._model.buffers() if self._size > 1 else ():
            dist.broadcast(buffer, 0)

    def close(self) -> None:
        self._under_way.clear()

    def _apply(self) -> None:
        _, averaged, groups = self._under_way.pop(0)
        self._update(averaged, groups)

    def _update(self, gradients: Gradients, groups: list[dict[str, Any]]) -> None:
        for each, gradient in zip(self._trained(), gradients, strict=False):
            each.grad = None if gradient is None else gradient.clone()
        now = self._groups()
        for group, values in zip(self._optimizer.param_groups, groups, strict=False):
            group.update(values)
        self._optimizer.step()
        for group, values in zip(self._optimizer.param_groups, now, strict=True):
            group.update(values)
        self._optimizer.zero_grad()

    def _trained(self) -> list[nn.Parameter]:
        return [each for group in self._optimizer.param_groups for each in group["params"]]

    def _groups(self) -> list[dict[str, Any]]:
        groups = self._optimizer.param_groups
        return [{name: value for name, value in group.items() if name != "params"} for group in groups]


def _averaged(own: Gradients, parameters: list[nn.Parameter]) -> Gradients:
    """Return the averages over the ranks, of which some have none; None where all have none."""
    reached = torch.tensor([float(each is not None) for each in own])
    values = [torch.zeros_like(p) if each is None else each for each, p in zip(own, parameters, strict=True)]
    total = torch.cat([reached, *(each.reshape(-1) for each in values)])
    dist.all_reduce(total)
    reached, *parts = total.split([len(own), *(each.numel() for each in parameters)])
    averages = [part.view(p.shape) / dist.get_world_size() for part, p in zip(parts, parameters, strict=True)]
    return [average if count else None for average, count in zip(averages, reached, strict=True)]
