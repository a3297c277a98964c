"""Corrections of a pipeline's stale gradients: none, as in the paper, or eager updates."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from gradwire.errors import SpecError, StateError
from gradwire.exchange.feedback import is_finite
from gradwire.sync.checkpoint import InFlight
from gradwire.sync.flat import FlatGradients
from gradwire.sync.used_parameters import clip, in_force

CORRECTIONS = ("eager", "none")
"""The default first."""


class Correction:
    """No correction, as in Pipe-SGD's algorithm 1: a rank computes at the masters."""

    CORRECTS = False
    """Set where ranks compute at other weights than the masters, which are the same on all ranks."""

    def ahead(self) -> AbstractContextManager[None]:
        """Let the model hold the weights to compute at, within a ``with`` block."""
        return nullcontext()

    def note(
        self, gradients: FlatGradients, scheduled: list[dict[str, Any]], absent: Collection[int] = ()
    ) -> None:
        """Note this rank's own gradient, which is handed over next, and the learning rates of its step.

        ``absent`` are the numbers of the parameters that backward has not reached.
        """

    def keep(self, count: int) -> None:
        """Forget all but the newest ``count`` own gradients: the averages of the others are applied."""

    def own(self) -> list[torch.Tensor]:
        """Return copies of the own gradients that are kept, oldest first, 1-D float32."""
        return []

    def resume(self, in_flight: Sequence[InFlight]) -> None:
        """Keep the own gradients of these instead, oldest first."""


def check_correction(correction: str) -> str:
    """Return ``correction``. Raises ``SpecError`` unless it is in ``CORRECTIONS``."""
    if correction not in CORRECTIONS:
        raise SpecError(f"a correction is one of {', '.join(CORRECTIONS)}, but got {correction!r}")
    return correction


def check_forward(model: nn.Module) -> None:
    """Raise ``SpecError`` for a model whose forward pass writes parameters, which eager updates take back."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise SpecError(
                f"{name or 'the model'} has max_norm={module.max_norm:g}, so its forward pass writes its "
                'weights, which an eager pipeline takes back; leave max_norm out, or use correction="none"'
            )


# Virtual weights: a model's weights after updates that are tried and then taken back.
#
# The updates run on a second set of weights and optimizer state, and the parameters point there meanwhile.
# The masters are never written: no failure can spoil them, and taking the updates back costs no copy.

_IMMUTABLE = (int, float, bool, complex, str, bytes, type(None))
_CHANGEABLE = (torch.Tensor, list, dict, set, tuple)
"""Attributes of these kinds may be changed in place; others, such as wrapped methods, are left alone."""
_APART = ("state", "param_groups", "defaults")
"""Attributes of an optimizer that are copied by other means, or only read."""


class VirtualWeights:
    """A second set of a model's trainable weights and of its optimizer's state.

    It takes the memory of the weights at once, and that of the optimizer's state once there is one. Taken
    back is what an optimizer keeps in ``state``, in ``param_groups`` and in attributes: numbers, tensors, and
    containers of them. Step hooks of the user do not run for virtual updates.

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
                f"an eager pipeline steps an optimizer itself, but this {type(optimizer).__name__} wraps "
                'another one; pass the optimizer inside, or use correction="none"'
            )
        self._parameters = parameters
        self._optimizer = optimizer
        self._weights = [torch.empty_like(parameter, requires_grad=False) for parameter in parameters]
        self._tensors: dict[tuple[Any, str], torch.Tensor] = {}

    @contextmanager
    def ahead(self, update: Callable[[Callable[[], object]], None]) -> Iterator[None]:
        """Let the parameters hold what ``update`` makes of the masters, within a ``with`` block.

        ``update`` receives the optimizer's bare step, and may call it several times. Raises ``StateError`` at
        the end of a block that has written a parameter or replaced its memory: what it wrote is lost. Writes
        through ``parameter.data`` are lost, too, and are not noticed.
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
        """Return a mark of each parameter that changes when it is written or its memory is replaced."""
        return [(parameter._version, parameter.data_ptr()) for parameter in self._parameters]

    def _bare_step(self) -> None:
        """Do the optimizer's step without hooks and without the wrappers of schedulers."""
        step: Any = type(self._optimizer).step
        (step.__wrapped__ if getattr(step, "hooked", False) else step)(self._optimizer)

    @contextmanager
    def _second_state(self) -> Iterator[None]:
        """Let the optimizer work on copies of its whole state, within a ``with`` block."""
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
                parameter.grad = None  # a step would move them, and that is never taken back
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
        """Return copies of the attributes that may be changed in place; parameters are not copied."""
        memo = {id(each): each for group in self._optimizer.param_groups for each in group["params"]}
        return {
            name: copy.deepcopy(value, memo)  # one memo keeps objects shared between attributes shared
            for name, value in attributes.items()
            if isinstance(value, _CHANGEABLE) and name not in _APART and not name.endswith("_hooks")
        }

    def _copy_state(self) -> defaultdict[Any, Any]:
        """Return a copy of the optimizer's state, in the memory of the last copy."""
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


# Eager updates: a rank's own gradient stands in for the average that is still on its way.
#
# While averages travel, a rank computes its next gradient at virtual weights: the masters, updated with its
# own gradients of the steps under way, by the optimizer and at the learning rates of those steps. When an
# average arrives, the masters take it instead. What stays stale in a gradient is then the difference between
# one rank's gradient and the average, sampling noise of mean zero, where the paper's pipeline misses the
# whole update. docs/pipe_corrections.md compares it with other corrections.


@dataclass(slots=True)
class _Own:
    """One of this rank's own gradients; ``usable``, whether it is finite, is None until that is known."""

    gradients: FlatGradients
    scheduled: list[dict[str, Any]]
    absent: Collection[int]
    usable: bool | None = None


class Eager(Correction):
    """Virtual weights from the own gradients of the last ``pipeline - 1`` steps.

    It keeps as many copies of the gradient, and the memory of ``VirtualWeights``. A gradient that is not
    finite makes no virtual update, and a parameter that backward has not reached has none.

    ``pipeline`` is K, from 2 up. Each own gradient is clipped to the 2-norm ``max_norm``.
    """

    CORRECTS = True

    def __init__(
        self,
        parameters: Sequence[Parameter],
        optimizer: torch.optim.Optimizer,
        pipeline: int,
        max_norm: float,
    ) -> None:
        self._optimizer, self._max_norm = optimizer, max_norm
        self._free = [FlatGradients(parameters, with_frozen=True) for _ in range(pipeline - 1)]
        self._own: deque[_Own] = deque()
        self._virtual = VirtualWeights(parameters, optimizer)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Let the model hold the virtual weights."""
        self._look()
        if not any(own.usable for own in self._own):
            yield
            return
        with self._virtual.ahead(self._replay):
            yield

    def note(
        self, gradients: FlatGradients, scheduled: list[dict[str, Any]], absent: Collection[int] = ()
    ) -> None:
        """Copy the gradient, which the exchange is going to average in place."""
        if not self._free:
            self.keep(len(self._own) - 1)  # its average is applied before the next step computes
        own = self._free.pop()
        own.flat.copy_(gradients.flat)
        self._own.append(_Own(own, scheduled, absent))

    def keep(self, count: int) -> None:
        """Let the buffers of the others be used again."""
        while len(self._own) > count:
            self._free.append(self._own.popleft().gradients)

    def own(self) -> list[torch.Tensor]:
        """Return copies of them as they are used, clipped."""
        self._look()
        return [own.gradients.staged().floats().clone() for own in self._own]

    def resume(self, in_flight: Sequence[InFlight]) -> None:
        """Keep the newest, clipped already; the average stands in where an own gradient was not saved."""
        self.keep(0)
        for each in in_flight[-len(self._free) :]:
            own, absent = each.own, each.own_absent
            if own is None:
                own, absent = each.gradient.clone(), each.absent
                clip(own, self._max_norm)
            gradients = self._free.pop()
            gradients.buffer.copy_(own)
            gradients.put()
            self._own.append(_Own(gradients, each.scheduled, absent, is_finite(own)))

    def _look(self) -> None:
        """Clip the new ones; not in ``note``, which would delay their exchange."""
        for own in self._own:
            if own.usable is None:
                own.usable = is_finite(own.gradients.flat)
                clip(own.gradients.flat, self._max_norm)

    def _replay(self, step: Callable[[], object]) -> None:
        for own in self._own:
            if own.usable:
                own.gradients.attach(own.absent)
                with in_force(own.scheduled, self._optimizer):
                    step()
