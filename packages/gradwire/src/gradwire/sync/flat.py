"""A model's gradients, or weights, as one flat float32 buffer: what an exchange takes and returns.

One all-reduce of the whole buffer per step is the sequential exchange of Pipe-SGD (section 3.1, equation 5);
``buckets`` cuts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate

import torch
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from gradwire.devices import Staged, Staging, device_of, on_host
from gradwire.errors import TensorError
from gradwire.sync.buckets import Bucket, is_zero


class FlatGradients:
    """One flat buffer whose views are the ``.grad`` of the parameters that a method trains.

    Backward then writes straight into what is exchanged, and the optimizer reads straight from it. A
    parameter that occurs twice (tied weights) counts once. One that a backward pass does not reach, since it
    is not used or frozen by now, is exchanged as 0, and ``unreached`` names it.

    Parameters
    ----------
    parameters
        Dense float32 parameters on one device, in the same order on every rank. Raises ``TensorError`` for
        any other, and when there is none.
    with_frozen
        Whether those that ask for no gradient now have a place, too.
    on_device
        Whether gradients stay on their device, for an exchange that encodes them there.

    Attributes
    ----------
    flat
        1-D contiguous float32 tensor beside the parameters, all gradients one after the other. Each view has
        the parameter's shape.
    buffer
        What is exchanged, of the same length: ``flat`` itself on the CPU and where gradients stay on their
        device, else memory of the host, which ``staged`` fills.
    parameters
        The parameters, each once, in the order of the buffer.
    """

    def __init__(
        self, parameters: Iterable[Parameter], *, with_frozen: bool = False, on_device: bool = False
    ) -> None:
        self.parameters = _checked(parameters) if with_frozen else trainable(parameters)
        self.flat, parts = _flat(self.parameters)
        self._staging = Staging(on_device)
        self.buffer = self._staging.stand_in(self.flat)
        views = [part.view(each.shape) for part, each in zip(parts, self.parameters, strict=True)]
        self._views = [view.data for view in views]  # each counts its own writes; views share one counter
        self._untouched = [view._version for view in self._views]
        self._absent: frozenset[int] = frozenset()
        filled = [number for number, count in enumerate(self.counts) if count]
        starts = [0, *accumulate(self.counts)]
        self._filled, self._firsts = (
            filled,
            torch.tensor([starts[number] for number in filled], device=self.buffer.device),
        )
        self.attach()

    def attach(self, absent: Collection[int] = ()) -> None:
        """Make every ``.grad`` its view of ``flat``; those of the numbers in ``absent`` None.

        What was stored of ``staged`` is there for the device's next operations.
        """
        self._staging.order()
        self._absent = frozenset(absent)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view
        for index in self._absent:
            self.parameters[index].grad = None

    def detach(self) -> None:
        """Make every ``.grad`` None; the buffer keeps its values."""
        for parameter in self.parameters:
            parameter.grad = None

    def zero(self) -> None:
        """Start a step: zero ``flat`` in place and attach it; nothing is reached."""
        self._staging.order()
        self.flat.zero_()
        self.attach()
        self._untouched = [view._version for view in self._views]

    def unreached(self, numbers: Iterable[int] | None = None) -> tuple[int, ...]:
        """Return which parameters, of all or of these numbers, have had no gradient since ``zero``.

        Backward adds to a view in place, which the view counts; ``collect`` comes first.
        """
        return tuple(
            index
            for index in (range(len(self._views)) if numbers is None else numbers)
            if self._views[index]._version == self._untouched[index]
        )

    def silent(self) -> list[int]:
        """Return the numbers of the parameters whose part of the buffer is all 0, but for empty ones."""
        suspects = (on_host(self.buffer[self._firsts]) == 0).nonzero().flatten().tolist()
        numbers = [self._filled[each] for each in suspects]
        return [each for each in numbers if is_zero(on_host(self.part(each, self.buffer)))]

    def part(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of parameter number ``index`` in ``tensor``, which is laid out as the buffer."""
        view = self._views[index]
        start = view.storage_offset() - self.flat.storage_offset()
        return tensor[start : start + view.numel()]

    def collect(self) -> torch.Tensor:
        """End a step: return ``flat``, with every ``.grad`` in it.

        Somebody may have replaced a ``.grad``, as ``zero_grad(set_to_none=True)`` followed by a backward pass
        does. Such a gradient is copied into its view and the view is attached again; None counts as 0, and
        stays None where ``attach`` made it None.
        """
        for index in range(len(self.parameters)):
            self.collect_one(index)
        return self.flat

    def collect_one(self, index: int) -> None:
        """Do for parameter number ``index`` what ``collect`` does for all."""
        found = self.parameters[index].grad
        if found is None and index in self._absent:
            return
        if not self.is_attached(index):
            self._take_in(index, found)

    def staged(self, bucket: Bucket | None = None) -> Staged:
        """Begin to copy the gradient, or a bucket of it, to ``buffer``, where an exchange may change it."""
        if bucket is None:
            return Staged(self.flat, self.buffer, self._staging)
        return Staged(bucket.view(self.flat), bucket.view(self.buffer), self._staging)

    def put(self) -> None:
        """Copy ``buffer``, which somebody has filled, to ``flat``."""
        self._staging.put(self.flat, self.buffer)

    def is_attached(self, index: int) -> bool:
        """Return whether the ``.grad`` of parameter number ``index`` is its view."""
        return self.parameters[index].grad is self._views[index]

    @property
    def counts(self) -> list[int]:
        """The number of floats of each parameter in the buffer."""
        return [view.numel() for view in self._views]

    @torch.no_grad()
    def _take_in(self, index: int, found: torch.Tensor | None) -> None:
        view = self._views[index]
        if found is None:
            view.zero_()
            self._untouched[index] = view._version
        else:
            view.copy_(found.to_dense() if found.is_sparse else found)
        self.parameters[index].grad = view


class FlatWeights:
    """A flat copy of parameters, for sending weights.

    The parameters keep their own memory: a server's exact weights stay untouched when the copy is sent
    through a lossy codec and adopts what the receivers will decode. ``buffer`` is a 1-D contiguous float32
    CPU tensor, all weights one after the other; see ``FlatGradients`` for the parameters.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = _checked(parameters)
        self._flat, parts = _flat(self._parameters)
        self._staging = Staging()
        self.buffer = self._staging.stand_in(self._flat)
        self._views = [part.view(each.shape) for part, each in zip(parts, self._parameters, strict=True)]

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
    """Return the parameters that ask for a gradient, each once; ``TensorError`` for no weight."""
    found = _checked(parameter for parameter in parameters if parameter.requires_grad)
    if not any(parameter.numel() for parameter in found):
        raise TensorError(
            f"expected a model with at least one trainable weight, got {len(found)} trainable parameters, "
            "all of them empty; look at the sizes of its layers"
        )
    return found


def _checked(parameters: Iterable[Parameter]) -> list[Parameter]:
    unique = list({id(parameter): parameter for parameter in parameters}.values())
    if not unique:
        raise TensorError(
            "expected a model with at least one trainable parameter, got none; "
            "is requires_grad off everywhere, or was a generator of parameters used twice?"
        )
    for number, parameter in enumerate(unique):
        if is_lazy(parameter):
            raise TensorError(
                f"every parameter must have its shape, but number {number} is a {type(parameter).__name__}; "
                "let the model run a forward pass first"
            )
        if hasattr(parameter, "placements"):
            raise TensorError(
                f"every parameter must be whole on every rank, but number {number} is a "
                f"{type(parameter.data).__name__}, a part of it on each rank; use gradwire.attach_fsdp"
            )
        if parameter.dtype != torch.float32 or parameter.layout != torch.strided or parameter.is_meta:
            raise TensorError(
                f"every trained parameter must be a dense float32 tensor with memory, but number {number}, "
                f"of shape {tuple(parameter.shape)}, is a {parameter.dtype} tensor of layout "
                f"{parameter.layout} on {parameter.device}; {_advice(parameter)}"
            )
        device, first = device_of(parameter), device_of(unique[0])
        if device is not first:
            raise TensorError(
                f"all parameters must be on one device, but number 0 is on {first} and number {number} on "
                f"{device}; move the model as a whole"
            )
    return unique


def check_frozen(parameters: Iterable[Parameter]) -> None:
    """Raise ``TensorError`` for a parameter that no method trains and whose bytes cannot be sent."""
    for number, parameter in enumerate(parameters):
        if parameter.layout != torch.strided or parameter.is_meta or hasattr(parameter, "placements"):
            raise TensorError(
                f"every frozen parameter must be a dense tensor with memory, whole on every rank, but number "
                f"{number}, of shape {tuple(parameter.shape)}, is a {type(parameter.data).__name__} of "
                f"layout {parameter.layout} on {parameter.device}; use to_empty() for a model on meta"
            )


def _advice(parameter: Parameter) -> str:
    if parameter.is_meta:
        return "use to_empty() for a model on meta"
    if parameter.is_complex():
        return "train it with DistributedDataParallel and gradwire.attach, or keep it as a real parameter"
    return "convert what is trained with .float(), and freeze the rest, which keeps its dtype"


def _flat(parameters: list[Parameter]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return zeroed memory for all parameters, beside them, and its consecutive parts."""
    counts = [parameter.numel() for parameter in parameters]
    flat = device_of(parameters[0]).zeros(sum(counts))
    return flat, torch.split(flat, counts)
