"""Virtual weights: a model's weights after updates that are tried and then taken back.

The updates run on a second set of weights and optimizer state, and the parameters point there meanwhile. The
masters are never written, so nothing that fails on the way can spoil them, and taking the updates back costs
no copy.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Parameter

from gradwire.errors import SpecError, StateError

_IMMUTABLE = (int, float, bool, complex, str, bytes, type(None))
_CHANGEABLE = (torch.Tensor, list, dict, set, tuple)
"""Attributes of these kinds may be changed in place; others, such as wrapped methods, are left alone."""
_OWN_WAY = ("state", "param_groups", "defaults")


class VirtualWeights:
    """The second set of one model's trainable weights and of its optimizer's state.

    It takes the memory of the weights at once, and that of the optimizer's state once there is one. What an
    optimizer keeps in ``state``, in ``param_groups`` or in attributes (numbers, tensors, and containers of
    them) is taken back; step hooks of the user do not run for virtual updates.

    Parameters
    ----------
    parameters
        The trainable parameters, each once. Between two ``ahead`` they are the masters.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure. Raises ``SpecError`` for one that wraps
        another, whose state would not be taken back.
    """

    def __init__(self, parameters: Sequence[Parameter], optimizer: torch.optim.Optimizer) -> None:
        own = vars(optimizer)
        if not {"state", "param_groups"} <= set(own) or any(
            isinstance(value, torch.optim.Optimizer) for value in own.values()
        ):
            raise SpecError(
                f"an eager pipeline wants an optimizer itself, but this {type(optimizer).__name__} wraps "
                'another one; give it the optimizer inside, or use correction="none"'
            )
        self._parameters = parameters
        self._optimizer = optimizer
        self._weights = [torch.empty_like(parameter, requires_grad=False) for parameter in parameters]
        self._tensors: dict[tuple[Any, str], torch.Tensor] = {}

    @contextmanager
    def ahead(self, update: Callable[[Callable[[], object]], None]) -> Iterator[None]:
        """Let the parameters hold what ``update`` makes of the masters, within a ``with`` block.

        ``update`` is called with the optimizer's bare step, to be used as often as wanted. Raises
        ``StateError`` at the end of a block that has written a parameter or replaced its memory: what it
        wrote is lost. Writes in place through ``parameter.data`` leave no trace, and are lost, too.
        """
        masters = [parameter.data for parameter in self._parameters]
        torch._foreach_copy_(self._weights, masters)
        try:
            for parameter, virtual in zip(self._parameters, self._weights, strict=True):
                parameter.data = virtual
            with self._second_state():
                update(self._bare_step)
            before = self._marks()
            yield
            if before != self._marks():
                raise StateError(
                    "the forward or backward pass has written a parameter, which an eager pipeline takes "
                    'back; train this model with correction="none", or write parameters between two steps'
                )
        finally:
            for parameter, master in zip(self._parameters, masters, strict=True):
                parameter.data = master

    def _marks(self) -> list[tuple[int, int]]:
        """Return what changes where a parameter is written, or gets other memory."""
        return [(parameter._version, parameter.data_ptr()) for parameter in self._parameters]

    def _bare_step(self) -> None:
        """Do the optimizer's step without its hooks, and without what schedulers put around it."""
        step: Any = type(self._optimizer).step
        (step.__wrapped__ if getattr(step, "hooked", False) else step)(self._optimizer)

    @contextmanager
    def _second_state(self) -> Iterator[None]:
        """Let the optimizer work on copies of all that it keeps, within a ``with`` block."""
        optimizer, ours = self._optimizer, set(map(id, self._parameters))
        attributes = dict(vars(optimizer))
        groups = [dict(group) for group in optimizer.param_groups]
        strangers = [
            (parameter, parameter.grad)
            for group in groups
            for parameter in group["params"]
            if id(parameter) not in ours and parameter.grad is not None
        ]
        try:
            for parameter, _ in strangers:
                parameter.grad = None  # a step would move them, and nobody would take it back
            vars(optimizer).update(self._copies(attributes))
            optimizer._optimizer_step_pre_hooks = OrderedDict()
            optimizer._optimizer_step_post_hooks = OrderedDict()
            optimizer.state = self._copy_state()
            for group in optimizer.param_groups:
                group.update({name: _copy(value) for name, value in group.items() if name != "params"})
            yield
        finally:
            for group, before in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(before)
            vars(optimizer).clear()
            vars(optimizer).update(attributes)
            for parameter, gradient in strangers:
                parameter.grad = gradient

    def _copies(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return copies of what may be changed in place; parameters in them stay what they are."""
        memo = {id(each): each for group in self._optimizer.param_groups for each in group["params"]}
        return {
            name: copy.deepcopy(value, memo)  # one memo: what they share they still share
            for name, value in attributes.items()
            if isinstance(value, _CHANGEABLE) and name not in _OWN_WAY and not name.endswith("_hooks")
        }

    def _copy_state(self) -> defaultdict[Any, Any]:
        """Return a copy of the optimizer's state; its tensors lie where those of the last copy lay."""
        sources: list[torch.Tensor] = []
        copies: list[torch.Tensor] = []
        state: defaultdict[Any, Any] = defaultdict(dict)
        for owner, values in self._optimizer.state.items():
            state[owner] = {}
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    sources.append(value)
                    copies.append(self._memory((owner, name), value))
                    state[owner][name] = copies[-1]
                else:
                    state[owner][name] = _copy(value)
        if sources:
            torch._foreach_copy_(copies, sources)
        return state

    def _memory(self, key: tuple[Any, str], like: torch.Tensor) -> torch.Tensor:
        found = self._tensors.get(key)
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            found = self._tensors[key] = torch.empty_like(like)
        return found


def _copy(value: Any) -> Any:
    """Return ``value`` such that changing it in place leaves the original alone."""
    if isinstance(value, _IMMUTABLE):
        return value
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
