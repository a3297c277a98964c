"""PyTorch's DDP tests ask for GPUs, though few are about them: here the CPU stands for all of their devices.

A test that cannot live with that fails without gradwire, too, and does not count.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

FOLDER = Path(tempfile.mkdtemp(prefix="gradwire-foreign-"))
_WORLD, _LIMIT_S = 3, 60
_ASKING = ("skip_if_no_gpu", "require_n_gpus_for_nccl_backend", "skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu")


def _prepare() -> None:
    """Say what the tests read when they are imported, and undo the decorators that skip without GPUs."""
    os.environ |= {
        "BACKEND": "gloo", "WORLD_SIZE": str(_WORLD), "TEMP_DIR": str(FOLDER), "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(_LIMIT_S),
    }  # fmt: skip

    def leave(test: Any) -> Any:
        return test

    for name in _ASKING:
        plain = name == "skip_if_no_gpu"
        vars(common_distributed)[name] = leave if plain else lambda *_, **__: leave


class _OnCpu(TorchFunctionMode):
    """Puts every tensor on the CPU, whatever device is asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to:
            args = tuple("cpu" if _is_device(each) else each for each in args)
        return func(*args, **kwargs)


def _is_device(found: Any) -> bool:
    return isinstance(found, torch.device | str) or type(found) is int


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    """Yield what has another meaning where the CPU stands for GPUs: owner, name, replacement."""
    init: Callable[..., None] = DistributedDataParallel.__init__

    def wrapped(self: DistributedDataParallel, module: nn.Module, *_: Any, **options: Any) -> None:
        options.pop("device_ids", None), options.pop("output_device", None)
        init(self, module, **options)

    def to(self: nn.Module, *args: Any, **options: Any) -> nn.Module:
        dtypes = [each for each in (*args, options.get("dtype")) if isinstance(each, torch.dtype)]
        if dtypes:
            self._apply(lambda tensor: tensor.to(dtypes[0]))  # type: ignore[no-untyped-call]
        return self

    yield DistributedDataParallel, "__init__", wrapped
    yield nn.Module, "to", to
    yield nn.Module, "cuda", lambda self, *_: self
    for name in ("set_device", "synchronize", "manual_seed"):
        yield torch.cuda, name, lambda *_, **__: None
    yield torch.cuda, "current_device", lambda: "cpu"


@contextmanager
def cpu_for_gpus() -> Iterator[None]:
    """Let the CPU stand for all devices."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _replaced()]
    for owner, name, replacement in _replaced():
        setattr(owner, name, replacement)
    try:
        with _OnCpu():
            yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


_prepare()
