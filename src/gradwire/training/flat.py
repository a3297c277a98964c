"""A model's gradients, or weights, as one flat float32 buffer: what an exchange takes and returns.

One all-reduce of the whole buffer per step is the sequential exchange of Pipe-SGD (section 3.1, equation 5);
``buckets`` cuts it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Parameter

from gradwire.errors import TensorError


class FlatGradients:
    """One flat buffer whose views are the ``.grad`` of the trainable parameters.

    Backward then writes straight into what is exchanged, and the optimizer reads straight from it. A
    parameter that occurs twice (tied weights) counts once; frozen parameters have no place; one that a
    backward pass does not reach has the gradient 0.

    Parameters
    ----------
    parameters
        Dense float32 CPU parameters, in the same order on every rank. Raises ``TensorError`` for any other,
        and when none is trainable.

    Attributes
    ----------
    buffer
        1-D contiguous float32 CPU tensor, all gradients one after the other. Each view has the parameter's
        shape.
    parameters
        The trainable parameters, each once, in the order of the buffer.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self.parameters = trainable(parameters)
        self.buffer, self._views = _flat(self.parameters)
        self.attach()

    def attach(self) -> None:
        """Make every ``.grad`` its view of the buffer."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view

    def detach(self) -> None:
        """Make every ``.grad`` None; the buffer keeps its values."""
        for parameter in self.parameters:
            parameter.grad = None

    def zero(self) -> None:
        """Start a step: zero the buffer in place and attach it."""
        self.buffer.zero_()
        self.attach()

    def collect(self) -> torch.Tensor:
        """End a step: return the buffer, with every ``.grad`` in it.

        Somebody may have replaced a ``.grad``, as ``zero_grad(set_to_none=True)`` followed by a backward pass
        does. Such a gradient is copied into its view and the view is attached again; None counts as 0.
        """
        for index in range(len(self.parameters)):
            self.collect_one(index)
        return self.buffer

    def collect_one(self, index: int) -> None:
        """Do for parameter number ``index`` what ``collect`` does for all."""
        if not self.is_attached(index):
            self._take_in(self.parameters[index], self._views[index])

    def is_attached(self, index: int) -> bool:
        """Tell whether the ``.grad`` of parameter number ``index`` is its view."""
        return self.parameters[index].grad is self._views[index]

    @property
    def counts(self) -> list[int]:
        """How many floats each parameter has in the buffer."""
        return [view.numel() for view in self._views]

    @staticmethod
    @torch.no_grad()
    def _take_in(parameter: Parameter, view: torch.Tensor) -> None:
        found = parameter.grad
        if found is None:
            view.zero_()
        else:
            view.copy_(found.to_dense() if found.is_sparse else found)
        parameter.grad = view


class FlatWeights:
    """A flat copy of parameters, for sending weights.

    The parameters keep their own memory: a server's exact weights stay untouched when the copy is sent
    through a lossy codec and adopts what the receivers will decode.

    Parameters
    ----------
    parameters
        Dense float32 CPU parameters, in the same order on every rank. Raises ``TensorError`` for any other,
        and when there is none.

    Attributes
    ----------
    buffer
        1-D contiguous float32 CPU tensor, all weights one after the other.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = _checked(parameters)
        self.buffer, self._views = _flat(self._parameters)

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        """Copy the weights into the buffer and return it."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            view.copy_(parameter)
        return self.buffer

    @torch.no_grad()
    def scatter(self) -> None:
        """Copy the buffer into the weights."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.copy_(view)

    def load(self, flat: torch.Tensor) -> None:
        """Copy ``flat``, laid out like the buffer, into buffer and weights. Raises ``TensorError``."""
        if flat.shape != self.buffer.shape or flat.dtype != torch.float32:
            raise TensorError(
                f"these parameters take a 1-D float32 tensor of {self.buffer.numel()} weights, but a "
                f"{flat.dtype} tensor of shape {tuple(flat.shape)} came; was it taken from another model?"
            )
        self.buffer.copy_(flat)
        self.scatter()


def trainable(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return the parameters that ask for a gradient, each once. Raises ``TensorError``, also for none."""
    return _checked(parameter for parameter in parameters if parameter.requires_grad)


def _checked(parameters: Iterable[Parameter]) -> list[Parameter]:
    unique = list({id(parameter): parameter for parameter in parameters}.values())
    if not unique:
        raise TensorError(
            "a model with at least one trainable parameter was wanted, but none came; "
            "is requires_grad off everywhere, or was a generator of parameters used twice?"
        )
    for number, parameter in enumerate(unique):
        if (
            parameter.dtype != torch.float32
            or parameter.device.type != "cpu"
            or parameter.layout != torch.strided
        ):
            raise TensorError(
                f"every parameter must be a dense float32 tensor on the CPU, but number {number}, of shape "
                f"{tuple(parameter.shape)}, is a {parameter.dtype} tensor of layout {parameter.layout} on "
                f"{parameter.device}; use model.float() or model.cpu()"
            )
    return unique


def _flat(parameters: list[Parameter]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a zeroed buffer and its consecutive views in the parameters' shapes."""
    counts = [parameter.numel() for parameter in parameters]
    buffer = torch.zeros(sum(counts), dtype=torch.float32, device="cpu")
    parts = torch.split(buffer, counts)
    return buffer, [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
