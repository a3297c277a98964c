"""Corrections of a pipeline's stale gradients: none, as in the paper, or eager updates."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from gradwire.errors import SpecError, StateError
from gradwire.exchange.feedback import is_finite
from gradwire.sync.checkpoint import InFlight
from gradwire.sync.flat.gradients import Bucket, FlatGradients
from gradwire.sync.flat.update import clip, in_force

CORRECTIONS = ("eager", "none")
"""The accepted values of ``correction``. The first value is the default."""


def check_correction(correction: str) -> str:
    """Return ``correction`` if it is in ``CORRECTIONS``, else raise ``SpecError``."""
    if correction not in CORRECTIONS:
        raise SpecError(
            f"expected one of {', '.join(CORRECTIONS)} for correction, got {correction!r}; omit correction "
            f"for {CORRECTIONS[0]}"
        )
    return correction


def check_forward(model: nn.Module) -> None:
    """Raise ``SpecError`` if a model's forward pass writes parameters, which eager updates would undo."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise SpecError(
                "an eager pipeline: expected a forward pass that doesn't write weights, got "
                f"max_norm={module.max_norm:g} in {name or 'the model'}; omit max_norm, or use "
                'correction="none"'
            )


# Virtual weights: a model's weights after temporary updates.
#
# The updates run on a second set of weights and optimizer state, to which the parameters point temporarily.
# The masters are never written: no failure can corrupt them, and undoing the updates needs no copy.

_IMMUTABLE = (int, float, bool, complex, str, bytes, type(None))
_CHANGEABLE = (torch.Tensor, list, dict, set, tuple)
"""The types of attributes that are copied because they may change in place. Wrapped methods aren't copied."""
_APART = ("state", "param_groups", "defaults")
"""The optimizer attributes that are copied separately, or only read."""


class VirtualWeights:
    """A second set of a model's trainable weights and of its optimizer's state.

    The constructor allocates memory for the weights; the first use allocates memory for the optimizer's
    state. Virtual updates don't change the optimizer's ``state``, ``param_groups``, or attributes that are
    numbers, tensors, or containers of them. The user's step hooks don't run for virtual updates.

    Outside of ``ahead``, the trainable ``parameters``, each once, hold the masters. Raises ``SpecError`` if
    ``optimizer`` wraps another optimizer, because virtual updates would change the inner optimizer's state.
    """

    def __init__(self, parameters: Sequence[Parameter], optimizer: torch.optim.Optimizer) -> None:
        own = vars(optimizer)
        if not {"state", "param_groups"} <= set(own) or any(
            isinstance(value, torch.optim.Optimizer) for value in own.values()
        ):
            raise SpecError(
                f"an eager pipeline: expected a plain optimizer, got a {type(optimizer).__name__} that "
                'wraps another one; pass the inner optimizer, or use correction="none"'
            )
        self._parameters = parameters
        self._optimizer = optimizer
        self._weights = [torch.empty_like(parameter, requires_grad=False) for parameter in parameters]
        self._tensors: dict[tuple[Any, str], torch.Tensor] = {}

    @contextmanager
    def ahead(self, update: Callable[[Callable[[], object]], None]) -> Iterator[None]:
        """Run a ``with`` block in which the parameters have the masters' values after ``update``.

        ``update`` is called with the optimizer's step without hooks, which it may call several times. Raises
        ``StateError`` at the end of a block that has written a parameter or replaced its memory: such writes
        are lost. Writes through ``parameter.data`` are lost without an error.
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
                    "an eager pipeline: expected unchanged parameters after the forward and backward "
                    'passes, got a changed one; use correction="none", or change parameters only '
                    "between steps"
                )
        finally:
            for parameter, master in zip(self._parameters, masters, strict=True):
                parameter.data = master

    def _marks(self) -> list[tuple[int, int]]:
        return [(parameter._version, parameter.data_ptr()) for parameter in self._parameters]

    def _bare_step(self) -> None:
        """Call the optimizer's step without hooks and without the schedulers' wrappers."""
        step: Any = type(self._optimizer).step
        (step.__wrapped__ if getattr(step, "hooked", False) else step)(self._optimizer)

    @contextmanager
    def _second_state(self) -> Iterator[None]:
        """Run a ``with`` block in which the optimizer uses copies of its whole state."""
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
                parameter.grad = None  # otherwise, the step would update the parameter irreversibly
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
        """Return copies of the attributes that may change in place. Parameters aren't copied."""
        memo = {id(each): each for group in self._optimizer.param_groups for each in group["params"]}
        return {
            name: copy.deepcopy(value, memo)  # one memo, so that attributes still share objects
            for name, value in attributes.items()
            if isinstance(value, _CHANGEABLE) and name not in _APART and not name.endswith("_hooks")
        }

    def _copy_state(self) -> defaultdict[Any, Any]:
        """Return a copy of the optimizer's state, which reuses the memory of the last copy."""
        sources, copies = list[torch.Tensor](), list[torch.Tensor]()
        state = defaultdict[Any, Any](dict)
        for owner, values in self._optimizer.state.items():
            if not isinstance(values, dict):  # some optimizers also have strings as keys
                state[owner] = _copy(values)
                continue
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
    if isinstance(value, _IMMUTABLE):
        return value
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


# Eager updates: a rank's local gradient stands in for the average that is still in flight.
#
# While averages are in flight, a rank computes its next gradient at virtual weights: the masters, updated by
# the optimizer with the local gradients of the steps in flight, at the learning rates of those steps. When an
# average arrives, the masters are updated with it. The weights' remaining error is the difference between the
# local gradient and the average: sampling noise with mean zero. In the paper's pipeline, the whole update is
# missing. docs/pipe_corrections.md compares eager updates with other corrections.


@dataclass(slots=True)
class _Own:
    """A local gradient of this rank. ``usable`` says whether the gradient is finite; None means unchecked."""

    gradients: FlatGradients
    scheduled: list[dict[str, Any]]
    absent: Collection[int]
    usable: bool | None = None


class Eager:
    """The eager correction: virtual weights from the local gradients of the last ``steps`` steps.

    The correction stores ``steps`` copies of the gradient, and ``VirtualWeights``. A gradient that isn't
    finite causes no virtual update, and a parameter without a gradient isn't updated. Each local gradient is
    clipped to the 2-norm ``max_norm``. With ``steps`` of 0, ranks compute gradients at the master weights, as
    in Pipe-SGD's algorithm 1.
    """

    def __init__(
        self, parameters: Sequence[Parameter], optimizer: torch.optim.Optimizer, steps: int, max_norm: float
    ) -> None:
        self.steps, self._optimizer, self._max_norm = steps, optimizer, max_norm
        self._free = [FlatGradients(parameters, with_frozen=True) for _ in range(steps)]
        self._own: deque[_Own] = deque()
        self._copied: FlatGradients | None = None  # set between ``copy`` and ``note``
        self._virtual = VirtualWeights(parameters, optimizer) if steps else None

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Run a ``with`` block in which the model has the weights at which to compute gradients."""
        self._look()
        if self._virtual is None or not any(own.usable for own in self._own):
            yield
            return
        with self._virtual.ahead(self._replay):
            yield

    def copy(self, gradients: FlatGradients, bucket: Bucket) -> None:
        """Copy a bucket of this rank's local gradient before the exchange averages the bucket in place."""
        if not self.steps:
            return
        if self._copied is None:
            if not self._free:
                self.keep(len(self._own) - 1)  # the oldest one's average is applied before the next backward
            self._copied = self._free.pop()
        bucket.view(self._copied.flat).copy_(bucket.view(gradients.flat))

    def note(self, scheduled: list[dict[str, Any]], absent: Collection[int] = ()) -> None:
        """Record the local gradient whose buckets have been copied, with the learning rates of its step.

        ``absent`` contains the numbers of the parameters without a gradient.
        """
        if not self.steps:
            return
        assert self._copied is not None, "all buckets are copied first"
        self._own.append(_Own(self._copied, scheduled, absent))
        self._copied = None

    def keep(self, count: int) -> None:
        """Drop all but the newest ``count`` local gradients: the averages of older ones were applied."""
        while len(self._own) > count:
            self._free.append(self._own.popleft().gradients)

    def own(self) -> list[torch.Tensor]:
        """Return clipped copies of the recorded local gradients as 1-D float32, oldest first."""
        self._look()
        return [own.gradients.staged().floats().clone() for own in self._own]

    def resume(self, in_flight: Sequence[InFlight]) -> None:
        """Restore the newest local gradients; one that wasn't saved is replaced with its clipped average."""
        self.keep(0)
        for each in in_flight[-len(self._free) :] if self._free else ():
            own, absent = each.own, each.own_absent
            if own is None:
                own, absent = each.gradient.clone(), each.absent
                clip(own, self._max_norm)
            gradients = self._free.pop()
            gradients.buffer.copy_(own)
            gradients.put()
            self._own.append(_Own(gradients, each.scheduled, absent, is_finite(own)))

    def _look(self) -> None:
        """Clip new local gradients. ``note`` doesn't, because clipping would delay their exchange."""
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
