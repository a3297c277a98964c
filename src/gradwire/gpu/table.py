"""Which formats have kernels here. Codecs that name none of these run on the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from gradwire.errors import MissingPackageError
from gradwire.gpu.contract import Format
from gradwire.version import how_to_install

PLACES = {
    "bf16": ("cast", "BF16"),
    "bfp": ("bfp", "BFP"),
    "errbound": ("errbound", "ERRBOUND"),
    "fp16": ("cast", "FP16"),
    "fp8": ("fp8", "FP8"),
    "inceptionn": ("inceptionn", "INCEPTIONN"),
    "pack": ("pack", "PACK"),
    "quantize": ("quantize", "QUANTIZE"),
    "terngrad": ("terngrad", "TERNGRAD"),
    "topk": ("topk", "TOPK"),
}
"""The module in ``formats`` and the name of each format's kernels."""


@cache
def format_of(name: str, otherwise: str = "encode on the host: codec.encode(x.cpu())") -> Format:
    """Return the kernels of a format of PLACES.

    Raises ``MissingPackageError`` without Triton, which says what to do ``otherwise``.
    """
    module, kernels = PLACES[name]
    found = _of(f"formats.{module}", kernels, otherwise)
    assert isinstance(found, Format)
    return found


def delta_kernels() -> tuple[Callable[..., torch.Tensor], tuple[str, ...]]:
    """Return ``queue_delta`` and the faults of ``deltas``. Raises ``MissingPackageError`` without Triton."""
    otherwise = "send other than deltas there, such as HostOffload's static:16"
    return _of("deltas", "queue_delta", otherwise), _of("deltas", "FAULTS", otherwise)


def _of(module: str, attribute: str, otherwise: str) -> Any:
    try:
        return getattr(import_module(f"gradwire.gpu.{module}"), attribute)
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire.gpu needs the package triton, which does not load here ({error}); "
            f"{how_to_install('gpu')}, or {otherwise}",
            name="triton",
        ) from error
