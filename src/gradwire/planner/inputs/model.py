"""The model of ``gradwire plan``: a number of parameters, or a factory whose model is measured."""

from __future__ import annotations

import importlib
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from gradwire.errors import GradwireError, SpecError
from gradwire.planner.inputs.recording import record_gradients
from gradwire.planner.inputs.threads import use_threads

REPEATS = 5
_EXITS_BY_SIGNAL = tuple(128 + number for number in (signal.SIGTERM, signal.SIGHUP))
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Measured:
    """The times of a model's passes on this machine, in seconds, and the resulting gradients."""

    forward_s: float
    backward_s: float
    gradients: tuple[torch.Tensor, ...]


def load_factory(text: str) -> tuple[nn.Module, tuple[Any, ...] | None]:
    """Return the model that ``package.module:function`` returns, and its example inputs, if any.

    Modules are also searched for in the current folder. Raises ``SpecError`` for every failure.
    """
    if _FACTORY.fullmatch(text) is None:
        raise SpecError(
            f"--model is a number of parameters, such as 25.6M, or a function package.module:name, but not "
            f"{text!r}"
        )
    made = _call(text, _find(text))
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not (inputs is None or isinstance(inputs, (tuple, torch.Tensor))):
        raise SpecError(
            f"{text} must return a torch.nn.Module, or a pair of it and a tuple of example inputs, but "
            f"returned {_describe(made)}"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(f"{text} returned a model without trainable parameters; there is nothing to exchange")
    return model, (inputs,) if isinstance(inputs, torch.Tensor) else inputs


def measure_model(model: nn.Module, inputs: tuple[Any, ...], threads: int) -> Measured:
    """Return the medians of some forward and backward passes, the loss being the mean of the output.

    Raises ``SpecError`` if a pass fails, or if the output isn't a floating point tensor (or a tuple or dict
    that begins with one).
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
            f"the model failed on its example inputs: {type(error).__name__}: {_first_line(error)}"
        ) from error
    finally:
        model.zero_grad(set_to_none=True)
    return Measured(median(forward_s[1:]), median(backward_s[1:]), tuple(record.gradients))


def _find(text: str) -> Callable[[], object]:
    module_name, _, names = text.partition(":")
    try:
        with _current_folder():
            found: object = importlib.import_module(module_name)
    except SystemExit as leaving:
        raise _left(text, leaving) from leaving
    except Exception as error:
        raise SpecError(
            f"the model {text} cannot be imported: {type(error).__name__}: {_first_line(error)}; run "
            "where it can be, or set PYTHONPATH"
        ) from error
    for name in names.split("."):
        if not hasattr(found, name):
            raise SpecError(f"the model {text} cannot be found: {module_name} has no {names}")
        found = getattr(found, name)
    if not callable(found):
        raise SpecError(f"{text} must be a function without arguments, but is {_describe(found)}")
    return found


def _call(text: str, factory: Callable[[], object]) -> object:
    try:
        with _current_folder():
            return factory()
    except SystemExit as leaving:
        raise _left(text, leaving) from leaving
    except Exception as error:
        raise SpecError(
            f"{text}, called without arguments, raised {type(error).__name__}: {_first_line(error)}"
        ) from error


def _left(text: str, leaving: SystemExit) -> BaseException:
    """Return the error for user code that ends the program, so that its exit isn't taken for a plan."""
    if leaving.code in _EXITS_BY_SIGNAL:
        return SystemExit(leaving.code)
    return SpecError(f"the model {text} ended the program with exit code {leaving.code!r} and gave no model")


@contextmanager
def _current_folder() -> Iterator[None]:
    """Let modules of the current folder be found, as ``python -m`` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _output(found: object) -> torch.Tensor:
    while isinstance(found, (tuple, list, dict)) and found:
        found = next(iter(found.values())) if isinstance(found, dict) else found[0]
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        raise SpecError(
            "the model must return a floating point tensor to take a loss of, but returned "
            f"{_describe(found)}"
        )
    return found


def _describe(value: object) -> str:
    return f"a {type(value).__name__}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no reason given"])[0]
