"""Triton's interpreter, made several times as fast where it does the same again and again.

What it computes stays: types and shapes are found once, and nothing looks for integers that overflow, which
Triton does and then, unless it debugs, ignores. Only what a GPU computes with one rounding has one here, too.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import numpy as np


def interpret() -> None:
    """Let Triton interpret kernels from now on, in a process that has imported none."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [each for each in sys.modules if each.partition(".")[0] == "triton"]:
        if not name.startswith("triton._C"):  # torch's compiler imports Triton, which then compiles kernels
            del sys.modules[name]
    interpreter = import_module("triton.runtime.interpreter")
    _patch_language_once(interpreter)
    _remember_types(interpreter)
    _round_once(interpreter)
    semantic = import_module("triton.language.semantic").TritonSemantic
    _remember_shapes(import_module("triton.language.core"), semantic)
    semantic.binary_op_sanitize_overflow_impl = lambda *_: None


def _patch_language_once(interpreter: Any) -> None:
    """Patch Triton's language once a module of kernels, which Triton does at each call of a function."""
    whole, patched = interpreter._patch_lang, set[int]()

    def patch(function: Any) -> Any:
        if id(function.__globals__) not in patched:
            whole(function)
            patched.add(id(function.__globals__))
        return interpreter._LangPatchScope()  # it has nothing to restore

    interpreter._patch_lang = patch


def _remember_types(interpreter: Any) -> None:
    """Find NumPy's type of Triton's once."""
    whole = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def of(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = whole(kind)
        return known[name]

    interpreter._get_np_dtype = of


def _round_once(interpreter: Any) -> None:
    """Let a fused product and sum of float32 keep all bits of the product, which Triton's rounds.

    The product in float64 is exact. Where the sum is not, it is rounded twice, which keeps its order.
    """

    def fused(_: Any, x: Any, y: Any, z: Any) -> Any:
        exact = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(exact.astype(x.data.dtype), z.dtype.scalar)

    interpreter.InterpreterBuilder.create_fma = fused


def _remember_shapes(core: Any, semantic: Any) -> None:
    """Unwrap a shape once, so that equal shapes are one object, and wrap its lengths once for tensors."""
    shapes: dict[tuple[Any, ...], Any] = {}
    wrapped: dict[int, tuple[Any, Any]] = {}
    begin_type, begin_tensor = core.block_type.__init__, core.tensor.__init__
    broadcast = semantic.broadcast_impl_value

    def of_type(self: Any, element: Any, shape: Any) -> None:
        key = tuple([getattr(each, "value", each) for each in shape])
        if key in shapes:
            self.element_ty, (self.shape, self.numel, text) = element, shapes[key]
            self.name = f"<{text}, {element}>"
        else:
            begin_type(self, element, shape)
            self.shape, _, _ = shapes.setdefault(key, (self.shape, self.numel, str(self.shape)))

    def of_tensor(self: Any, handle: Any, kind: Any) -> None:
        shape = id(kind.shape) if kind.is_block() else 0
        if shape in wrapped:
            self.handle, self.type, self.dtype = handle, kind, kind.scalar
            self.shape, self.numel = wrapped[shape]
        else:
            begin_tensor(self, handle, kind)
            wrapped[shape] = self.shape, self.numel

    def of_both(self: Any, left: Any, right: Any) -> Any:
        both = left.type, right.type
        is_same = both[0].is_block() and both[1].is_block() and both[0].shape is both[1].shape
        return (left, right) if is_same else broadcast(self, left, right)

    core.block_type.__init__, core.tensor.__init__ = of_type, of_tensor
    semantic.broadcast_impl_value = of_both
