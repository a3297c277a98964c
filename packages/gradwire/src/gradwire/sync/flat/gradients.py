"""A model's gradients, or weights, as a flat float32 buffer for an exchange; ``cut`` divides it into buckets.

One all-reduce of the whole buffer per step is the sequential exchange of Pipe-SGD (section 3.1, equation 5).
With several buckets, the exchange begins before backward has ended. Backward computes the gradients in
roughly the reverse order of the parameters, so the first bucket is the end of the buffer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from gradwire.devices import Staged, Staging, device_of, on_host
from gradwire.errors import TensorError
from gradwire.plan import bucket_members
from gradwire.sync.bucket.error_feedback import is_zero


@dataclass(frozen=True, slots=True)
class Bucket:
    """The range ``start`` to ``stop`` of the flat buffer: the gradients of the numbered ``parameters``."""

    start: int
    stop: int
    parameters: range

    @property
    def count(self) -> int:
        """The number of floats in the bucket."""
        return self.stop - self.start

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return this bucket's part of ``buffer``, as a view."""
        return buffer[self.start : self.stop]


def cut(counts: Sequence[int], bucket_nbytes: int | None) -> list[Bucket]:
    """Divide parameters of ``counts`` floats into buckets, as ``plan.bucket_members`` does."""
    starts = [0, *accumulate(counts)]
    return [
        Bucket(starts[members.start], starts[members.stop], members)
        for members in bucket_members(counts, bucket_nbytes)
    ]


def float_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a gradient as floats; as in DDP's buckets, a complex element is two floats."""
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def floats_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a view of floats."""
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def float_count(parameter: torch.Tensor) -> int:
    """Return the number of floats in a parameter's gradient."""
    return math.prod(float_shape(parameter))


class FlatGradients:
    """A flat buffer whose views are the ``.grad`` of the parameters that a method trains.

    Backward writes directly to the exchanged buffer, and the optimizer reads the averages from the buffer. A
    parameter that occurs twice (tied weights) is included once. The gradient of a parameter that backward
    does not use, or that has been frozen, is exchanged as 0 (``unused``).

    Parameters
    ----------
    parameters
        Dense float32 parameters on one device, in the same order on every rank. Raises ``TensorError`` for
        other parameters, and if there are none.
    with_frozen
        Whether to include parameters that don't require a gradient now.
    on_device
        Whether gradients stay on their device, for an exchange that encodes them there.

    Attributes
    ----------
    flat
        1-D contiguous float32 tensor on the parameters' device, the concatenation of all gradients. Each view
        has the parameter's shape.
    buffer
        The buffer to exchange, of the same length: ``flat`` itself on the CPU and if gradients stay on their
        device, else host memory, which ``staged`` fills.
    parameters
        The parameters, each once, in the order of the buffer.
    """

    def __init__(
        self, parameters: Iterable[Parameter], *, with_frozen: bool = False, on_device: bool = False
    ) -> None:
        self.parameters = checked(parameters) if with_frozen else trainable(parameters)
        self.flat, views = _flat(self.parameters)
        self._staging = Staging(on_device)
        self.buffer = self._staging.stand_in(self.flat)
        self._views = [view.data for view in views]  # ``data`` has its own version counter; views share one
        self._untouched = [view._version for view in self._views]
        self._absent: frozenset[int] = frozenset()
        starts = [0, *accumulate(self.counts)]
        self._filled = [number for number, count in enumerate(self.counts) if count]
        self._firsts = torch.tensor([starts[each] for each in self._filled], device=self.buffer.device)
        self.attach()

    def attach(self, absent: Collection[int] = ()) -> None:
        """Set every ``.grad`` to its view of ``flat``, or to None for the parameter numbers in ``absent``.

        Operations that the device starts after this call read the values that ``staged`` has stored.
        """
        self._staging.order()
        self._absent = frozenset(absent)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view
        for index in self._absent:
            self.parameters[index].grad = None

    def detach(self) -> None:
        """Set every ``.grad`` to None. The buffer keeps its values."""
        for parameter in self.parameters:
            parameter.grad = None

    def zero(self) -> None:
        """Start a step: zero ``flat`` in place, attach it, and mark all parameters as unused."""
        self._staging.order()
        self.flat.zero_()
        self.attach()
        self._untouched = [view._version for view in self._views]

    def unused(self, numbers: Iterable[int] | None = None) -> tuple[int, ...]:
        """Return the parameters, of ``numbers`` or all, that got no gradient from ``zero`` to ``collect``."""
        among = range(len(self._views)) if numbers is None else numbers
        # Backward adds to a view in place, which increases the view's version.
        return tuple(each for each in among if self._views[each]._version == self._untouched[each])

    def all_zero(self) -> list[int]:
        """Return the numbers of the nonempty parameters whose part of the buffer is all 0."""
        candidates = (on_host(self.buffer[self._firsts]) == 0).nonzero().flatten().tolist()
        numbers = [self._filled[each] for each in candidates]
        return [each for each in numbers if is_zero(on_host(self.part(each, self.buffer)))]

    def part(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of ``tensor`` for parameter ``index``. ``tensor`` has the layout of the buffer."""
        view = self._views[index]
        start = view.storage_offset() - self.flat.storage_offset()
        return tensor[start : start + view.numel()]

    def collect(self) -> torch.Tensor:
        """Copy every replaced ``.grad`` into ``flat``, attach its view again, and return ``flat``.

        For example, ``zero_grad(set_to_none=True)`` and a backward pass replace a ``.grad``. If it is None,
        the view becomes 0, unless ``attach`` has set the None.
        """
        for index in range(len(self.parameters)):
            self.collect_one(index)
        return self.flat

    def collect_one(self, index: int) -> None:
        """Copy the gradient of parameter ``index`` into the flat buffer if it was replaced."""
        found = self.parameters[index].grad
        if found is None and index in self._absent:
            return
        if self.is_attached(index):
            return
        view = self._views[index]
        with torch.no_grad():
            if found is None:
                view.zero_()
                self._untouched[index] = view._version
            else:
                view.copy_(found.to_dense() if found.is_sparse else found)
            self.parameters[index].grad = view

    def staged(self, bucket: Bucket | None = None) -> Staged:
        """Start copying the gradient, or one bucket, to ``buffer``, where an exchange may change it."""
        if bucket is None:
            return Staged(self.flat, self.buffer, self._staging)
        return Staged(bucket.view(self.flat), bucket.view(self.buffer), self._staging)

    def put(self) -> None:
        """Copy ``buffer``, which the caller has filled, to ``flat``."""
        self._staging.put(self.flat, self.buffer)

    def is_attached(self, index: int) -> bool:
        """Return whether the ``.grad`` of parameter ``index`` is its view."""
        return self.parameters[index].grad is self._views[index]

    def version(self, index: int) -> int:
        """Return a number that increases when backward, or a hook, writes the gradient of a parameter."""
        return self._views[index]._version

    @property
    def counts(self) -> list[int]:
        """The number of floats of each parameter in the buffer."""
        return [view.numel() for view in self._views]


class FlatWeights:
    """A flat copy of parameters, for sending weights: ``buffer``, 1-D contiguous float32 on the CPU.

    The parameters keep their own memory. A lossy codec replaces the values of the copy with the values that
    the receivers decode, but a server's exact weights are unchanged. See ``FlatGradients`` for the
    parameters.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = checked(parameters)
        self._flat, self._views = _flat(self._parameters)
        self._staging = Staging()
        self.buffer = self._staging.stand_in(self._flat)

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        """Copy the weights into the buffer and return it."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            view.copy_(parameter)
        return Staged(self._flat, self.buffer, self._staging).floats()

    @torch.no_grad()
    def scatter(self) -> None:
        """Copy the buffer into the weights."""
        self._staging.put(self._flat, self.buffer)
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.copy_(view)


def trainable(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return the parameters that require a gradient, each once. Raises ``TensorError`` if all are empty."""
    found = checked(parameter for parameter in parameters if parameter.requires_grad)
    if not any(parameter.numel() for parameter in found):
        raise TensorError(
            f"expected a model with at least one trainable weight, got {len(found)} trainable parameters, "
            "all of them empty; create at least one layer with a size above 0"
        )
    return found


def checked(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return the parameters, each once. Raises ``TensorError`` for unsupported ones, and for none."""
    unique = list({id(parameter): parameter for parameter in parameters}.values())
    if not unique:
        raise TensorError(
            "expected a model with at least one trainable parameter, got none; "
            "set requires_grad on parameters, and pass a list if the parameters are from a generator"
        )
    for number, parameter in enumerate(unique):
        if is_lazy(parameter):
            raise TensorError(
                f"expected parameters with shapes, got a {type(parameter).__name__} as parameter {number}; "
                "run a forward pass of the model first"
            )
        if hasattr(parameter, "placements"):
            raise TensorError(
                f"expected parameters that are whole on every rank, got a {type(parameter.data).__name__} as "
                f"parameter {number}, with a shard on each rank; use gradwire.attach_fsdp"
            )
        if parameter.dtype != torch.float32 or parameter.layout != torch.strided or parameter.is_meta:
            raise TensorError(
                f"expected trained parameters that are dense float32 tensors with memory, got a "
                f"{parameter.dtype} tensor of layout {parameter.layout} on {parameter.device} as "
                f"parameter {number}, of shape {tuple(parameter.shape)}; {_advice(parameter)}"
            )
        device, first = device_of(parameter), device_of(unique[0])
        if device is not first:
            raise TensorError(
                f"expected all parameters on one device, got parameter 0 on {first} and parameter {number} "
                f"on {device}; move the whole model to one device with model.to"
            )
    return unique


def check_frozen(parameters: Iterable[Parameter]) -> None:
    """Raise ``TensorError`` for a frozen parameter whose bytes cannot be sent."""
    for number, parameter in enumerate(parameters):
        if parameter.layout != torch.strided or parameter.is_meta or hasattr(parameter, "placements"):
            raise TensorError(
                "expected frozen parameters that are dense tensors with memory, whole on every rank, got a "
                f"{type(parameter.data).__name__} of layout {parameter.layout} on {parameter.device} as "
                f"parameter {number}, of shape {tuple(parameter.shape)}; use to_empty() for a model on meta"
            )


def _advice(parameter: Parameter) -> str:
    if parameter.is_meta:
        return "use to_empty() for a model on meta"
    if parameter.is_complex():
        return "train the model with DistributedDataParallel and gradwire.attach, or make the parameter real"
    return "convert trained parameters with .float(), and freeze all other parameters, which keep their dtype"


def _flat(parameters: list[Parameter]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return zeroed memory for all parameters, on their device, and its consecutive views."""
    counts = [parameter.numel() for parameter in parameters]
    flat = device_of(parameters[0]).zeros(sum(counts))
    parts = torch.split(flat, counts)
    return flat, [part.view(each.shape) for part, each in zip(parts, parameters, strict=True)]
