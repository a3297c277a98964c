"""Record real gradients in a training loop, on which the planner measures codecs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gradwire.checkpoints import check_summed, summed
from gradwire.errors import DataError, JobError, StateError, TensorError
from gradwire.fields import Source, rows, tensor_of
from gradwire.files import open_ordinary, write_files


class RecordedGradients:
    """The gradients of a few backward passes, each flat: 1-D float32 on the CPU, zeros if missing."""

    def __init__(self, parameters: list[nn.Parameter], steps: int) -> None:
        self._parameters, self._steps = parameters, steps
        self._starts = [0]
        for parameter in parameters:
            self._starts.append(self._starts[-1] + parameter.numel())
        self._current: torch.Tensor | None = None
        self._came: set[int] = set()
        self.gradients: list[torch.Tensor] = []

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the gradients for ``gradwire plan --gradients``. Raises ``DataError``."""
        if not self.gradients:
            raise DataError("no gradient was recorded: let a backward pass run before saving")
        try:
            write_files({Path(path): summed(self.gradients)})
        except (JobError, RuntimeError) as error:
            raise DataError(f"the gradients cannot be written to {path}: {_first_line(error)}") from error

    def _note(self, index: int, parameter: torch.Tensor) -> None:
        if len(self.gradients) == self._steps or parameter.grad is None:
            return
        if index in self._came:
            self._finish()
            if len(self.gradients) == self._steps:
                return
        if self._current is None:
            self._current = torch.zeros(self._starts[-1])
        self._came.add(index)
        found = parameter.grad.detach()
        dense = found.to_dense() if found.is_sparse else found
        self._current[self._starts[index] : self._starts[index + 1]] = dense.flatten().to(
            "cpu", torch.float32
        )
        if len(self._came) == len(self._parameters):
            self._finish()

    def _finish(self) -> None:
        if self._current is not None:
            self.gradients.append(self._current)
        self._current, self._came = None, set()


@contextmanager
def record_gradients(model: nn.Module, steps: int = 4) -> Iterator[RecordedGradients]:
    """Record the gradients of the first ``steps`` backward passes within a ``with`` block.

    Hooks copy what backward leaves in every ``.grad``; nothing else changes. If gradients accumulate over
    several backward passes, each pass counts as one.

    Parameters
    ----------
    model
        A model with trainable parameters, of any floating dtype and on any device. Raises ``TensorError``
        if it has none.
    steps
        The number of passes to record. Raises ``TensorError`` below 1.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters or steps < 1:
        raise TensorError(
            "recording gradients wants a model with trainable parameters and 1 step or more, but got "
            f"{len(parameters)} parameters and {steps} steps"
        )
    record = RecordedGradients(parameters, steps)
    handles = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            partial(record._note, index)
        )
        for index, parameter in enumerate(parameters)
    ]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()
    if len(record.gradients) < steps:
        record._finish()


def load_gradients(path: str | os.PathLike[str]) -> list[torch.Tensor]:
    """Read a file of ``RecordedGradients.save``, or a tensor or list of tensors of ``torch.save``.

    This reads only tensors and runs no code. Raises ``DataError``.
    """
    try:
        open_ordinary(path).close()  # a pipe would keep torch.load waiting
        check_summed(path)
        found = torch.load(Path(path), map_location="cpu", weights_only=True)
    except StateError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"the gradients {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch.load raises anything for a damaged file
        raise DataError(
            f"{path} holds no gradients that torch.load can read; write them with gradwire.record_gradients"
        ) from error
    source = Source(f"the gradients in {path}", "write them with gradwire.record_gradients", DataError)
    gradients = source.read([found] if isinstance(found, torch.Tensor) else found, rows(tensor_of()))
    for each in gradients:
        if not each.is_floating_point():
            raise DataError(f"{path} must hold tensors of floating point numbers, but {each.dtype} is in it")
    sizes = {each.numel() for each in gradients}
    if len(sizes) != 1 or 0 in sizes:
        raise DataError(f"{path} must hold gradients of one size, but they have {sorted(sizes)} values")
    return list(gradients)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
