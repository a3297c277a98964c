"""The model in a plan request: a number of parameters, or a factory whose model is measured."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradwire.checkpoints import check_summed, summed
from gradwire.errors import DataError, GradwireError, JobError, SpecError, StateError, TensorError
from gradwire.fields import Source, rows, tensor_of
from gradwire.files import open_ordinary, write_files
from gradwire.planner.calibration import use_threads
from gradwire.planner.candidates import no_model


class RecordedGradients:
    """The gradients of a few backward passes: 1-D float32 on the CPU, with zeros for missing gradients."""

    def __init__(self, parameters: list[nn.Parameter], steps: int) -> None:
        self._counts, self._steps = [parameter.numel() for parameter in parameters], steps
        self._current = torch.empty(0)
        self._views: tuple[torch.Tensor, ...] = ()  # of each parameter in ``_current``
        self._came = set[int]()  # the parameters whose gradients ``_current`` has
        self.gradients: list[torch.Tensor] = []

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the gradients to a file for ``gradwire plan --gradients``. Raises ``DataError``."""
        if not self.gradients:
            raise DataError("expected at least one recorded gradient, got none; call backward before save")
        try:
            write_files({Path(path): summed(self.gradients)})
        except (JobError, RuntimeError) as error:
            raise DataError(
                f"the gradients cannot be written to {path}: {_first_line(error)}; pass a path in a writable "
                "folder"
            ) from error

    def _note(self, index: int, parameter: torch.Tensor) -> None:
        if parameter.grad is None:
            return
        if index in self._came:
            self._finish()
        if len(self.gradients) == self._steps:
            return
        if not self._came:
            self._current = torch.zeros(sum(self._counts))
            self._views = torch.split(self._current, self._counts)
        self._came.add(index)
        found = parameter.grad.detach()
        dense = found.to_dense() if found.is_sparse else found
        self._views[index].copy_(dense.flatten())
        if len(self._came) == len(self._counts):
            self._finish()

    def _finish(self) -> None:
        if self._came:
            self.gradients.append(self._current)
        self._came.clear()


@contextmanager
def record_gradients(model: nn.Module, steps: int = 4) -> Iterator[RecordedGradients]:
    """Record the gradients of the first ``steps`` backward passes within a ``with`` block.

    Hooks copy every ``.grad`` after backward has written it, and change nothing else. If gradients accumulate
    over several backward passes, each pass is recorded separately.

    Parameters
    ----------
    model
        A model with trainable parameters, of any floating dtype and on any device. Raises ``TensorError``
        without trainable parameters.
    steps
        The number of passes to record. Raises ``TensorError`` below 1.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters or steps < 1:
        raise TensorError(
            "expected a model with trainable parameters and at least 1 step to record, got "
            f"{len(parameters)} parameters and {steps} steps; unfreeze parameters, or record more steps"
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
    """Return the gradients in a file written by ``RecordedGradients.save`` or ``torch.save``.

    Only tensors are read, and no code from the file runs. Raises ``DataError`` if the file is invalid.
    """
    try:
        open_ordinary(path).close()  # a pipe would keep torch.load waiting
        check_summed(path)
        found = torch.load(Path(path), map_location="cpu", weights_only=True)
    except StateError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(
            f"the gradients {path} cannot be read: {error.strerror or error}; pass a file written by "
            "RecordedGradients.save"
        ) from error
    except Exception as error:  # torch.load may raise any exception for a damaged file
        raise DataError(
            f"expected recorded gradients in {path}, got a file that torch.load cannot read; write the "
            "file with gradwire.record_gradients"
        ) from error
    source = Source(f"the gradients in {path}", "write the file with gradwire.record_gradients", DataError)
    gradients = source.read([found] if isinstance(found, torch.Tensor) else found, rows(tensor_of()))
    for each in gradients:
        if not each.is_floating_point():
            raise DataError(
                f"expected tensors of floating point numbers in {path}, got {each.dtype}; write the file "
                "with gradwire.record_gradients"
            )
    sizes = {each.numel() for each in gradients}
    if len(sizes) != 1 or 0 in sizes:
        raise DataError(
            f"expected gradients of equal size in {path}, got {sorted(sizes)} values; record the gradients "
            "of one model"
        )
    return list(gradients)


def sizes_of(model: nn.Module | Iterable[nn.Parameter]) -> tuple[int, ...]:
    """Return the sizes of the trainable parameters, counting shared parameters once.

    Raises ``SpecError`` unless ``model`` is a model or its parameters, and the parameters are initialized.
    """
    found: object = model.parameters() if isinstance(model, nn.Module) else model
    if not isinstance(found, Iterable) or isinstance(found, (bytes, torch.Tensor)):
        raise no_model(found)
    parameters: list[Any] = list(found)
    for each in parameters:
        if not isinstance(each, torch.Tensor):
            raise no_model(each)
    if any(is_lazy(each) for each in parameters):
        raise SpecError(
            "expected a model with initialized parameters, got lazy parameters; run a forward pass first"
        )
    return tuple({id(each): each.numel() for each in parameters if each.requires_grad}.values())


REPEATS = 5
_EXITS_BY_SIGNAL = tuple(128 + number for number in (signal.SIGTERM, signal.SIGHUP))


@dataclass(frozen=True)
class Measured:
    """The seconds of a model's forward and backward passes on this machine, and the passes' gradients."""

    forward_s: float
    backward_s: float
    gradients: tuple[torch.Tensor, ...]


def load_factory(text: str) -> tuple[nn.Module, tuple[Any, ...] | None]:
    """Call the factory ``package.module:function``, and return its model and its example inputs, if any.

    Modules are also imported from the current folder. Raises ``SpecError`` for every failure.
    """
    factory = _find(text)
    with _code_of(text, f"{text}, called without arguments, raised"):
        made = factory()
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not (inputs is None or isinstance(inputs, (tuple, torch.Tensor))):
        raise SpecError(
            f"expected {text} to return a torch.nn.Module, or a module and a tuple of example inputs, got "
            f"{_describe(made)}; change the function's return value"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(
            f"expected {text} to return a model with trainable parameters, got a model without any; set "
            "requires_grad on its parameters"
        )
    return model, (inputs,) if isinstance(inputs, torch.Tensor) else inputs


def measure_model(model: nn.Module, inputs: tuple[Any, ...], threads: int) -> Measured:
    """Measure a model's forward and backward passes, with the mean of the output as the loss.

    Raises ``SpecError`` if a pass fails, or if the output isn't a floating point tensor (or a tuple, list, or
    dict that begins with such a tensor).
    """
    forward_s, backward_s = [], []
    try:
        with use_threads(threads), record_gradients(model, REPEATS) as record:
            for _ in range(REPEATS + 1):
                model.zero_grad(set_to_none=True)
                started = time.perf_counter()
                loss = _output(model(*inputs)).float().mean()
                passed = time.perf_counter()
                loss.backward()  # type: ignore[no-untyped-call]
                forward_s.append(passed - started)
                backward_s.append(time.perf_counter() - passed)
    except GradwireError:
        raise
    except Exception as error:
        raise SpecError(
            f"the model failed on its example inputs: {type(error).__name__}: {_first_line(error)}; change "
            "the example inputs that the factory returns"
        ) from error
    finally:
        model.zero_grad(set_to_none=True)
    return Measured(median(forward_s[1:]), median(backward_s[1:]), tuple(record.gradients))


def _find(text: str) -> Callable[[], object]:
    module_name, _, names = text.partition(":")
    with _code_of(
        text, f"the model {text} cannot be imported:", "; run in the folder of this module, or set PYTHONPATH"
    ):
        found: object = importlib.import_module(module_name)
    for name in names.split("."):
        if not hasattr(found, name):
            raise SpecError(
                f"the model {text} cannot be found: {module_name} has no {names}; pass the name of a "
                f"function in {module_name}"
            )
        found = getattr(found, name)
    if not callable(found):
        raise SpecError(
            f"expected {text} to be a function without arguments, got {_describe(found)}; pass a function "
            "that returns the model"
        )
    return found


@contextmanager
def _code_of(text: str, failed: str, remedy: str = "") -> Iterator[None]:
    """Run a factory's code in a ``with`` block, where it can import modules from the current folder.

    Any exception becomes a ``SpecError`` that begins with ``failed``, and so does ``SystemExit``, whose code
    isn't the command's; an exit after a signal still ends the program.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    except SystemExit as leaving:
        if leaving.code in _EXITS_BY_SIGNAL:
            raise
        raise SpecError(
            f"expected {text} to return a model, got an exit with code {leaving.code!r}; remove the exit"
        ) from leaving
    except Exception as error:
        raise SpecError(f"{failed} {type(error).__name__}: {_first_line(error)}{remedy}") from error
    finally:
        sys.path.remove(here)


def _output(found: object) -> torch.Tensor:
    while isinstance(found, (tuple, list, dict)) and found:
        found = next(iter(found.values())) if isinstance(found, dict) else found[0]
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        raise SpecError(
            f"expected the model to return a floating point tensor, got {_describe(found)}; change "
            "the model that the factory returns"
        )
    return found


def _describe(value: object) -> str:
    return f"a {type(value).__name__}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no reason given"])[0]
