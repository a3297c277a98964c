"""Amaranth, which takes half the time to make simulators of what tests build.

Values never change, but Amaranth walks through them again for each shape and in each pass. Here it remembers
shapes, does not rebuild values without clocks and resets of domains, tells classes apart without
``isinstance``, which is slow for abstract ones, and compiles the same code once. Verilog stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any

from amaranth.hdl import _ast, _dsl, _ir, _nir, _xfrm
from amaranth.sim import Simulator, _pyrtl

_LEAVES = {_ast.Signal, _ast.Const}
_PARTS: dict[type, Any] = {
    _ast.Operator: lambda value: value._operands,
    _ast.Slice: lambda value: (value._value,),
    _ast.Part: lambda value: (value._value, value._offset),
    _ast.Concat: lambda value: value._parts,
    _ast.SwitchValue: lambda value: (value._test, *(case for _, case in value._cases)),
}
"""What a value consists of, by its class."""


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of signals and constants alone."""
    kind = type(value)
    if kind not in _PARTS:
        return kind in _LEAVES
    try:
        return bool(value._is_plain)
    except AttributeError:
        value._is_plain = found = all(map(_is_plain, _PARTS[kind](value)))
    return found


def _remember_shapes(kind: Any) -> None:
    shape_of = kind.shape

    def shape(self: Any) -> Any:
        try:
            return self._shape
        except AttributeError:
            self._shape = found = shape_of(self)
        return found

    kind.shape = shape


def _cast(value: Any, cast: Any = _ast.Value.cast) -> Any:
    kind = type(value)
    return value if kind in _PARTS or kind in _LEAVES else cast(value)


def _check_rhs(value: Any, check: Any = _dsl._check_rhs) -> None:
    if not _is_plain(value):
        check(value)


@contextmanager
def shared_values() -> Iterator[None]:
    """Leave a value that several others have one value, in a netlist, too: the same logic in other words."""
    before, _xfrm.DomainLowerer.on_value = _xfrm.DomainLowerer.on_value, _lowered
    try:
        yield
    finally:
        _xfrm.DomainLowerer.on_value = before


def _lowered(self: Any, value: Any, lower: Any = _xfrm.DomainLowerer.on_value) -> Any:
    return value if _is_plain(value) else lower(self, value)


def _simulate(self: Any, design: Any, begin: Any = Simulator.__init__) -> None:
    with shared_values():
        begin(self, design)


def _collect(
    self: Any, fragment: Any, value: Any, collect: Any = _ir.Design._collect_used_signals_value
) -> None:
    kind = type(value)
    if kind is _ast.Signal:
        self._use_signal(fragment, value)
    elif kind in _PARTS:
        for part in _PARTS[kind](value):
            _collect(self, fragment, part)
    else:
        collect(self, fragment, value)


def _code(self: Any, value: Any, code_of: Any = _pyrtl._ValueCompiler.on_value) -> Any:
    kind = type(value)
    if (kind not in _PARTS and kind not in _LEAVES) or len(value) > 2**16:
        return code_of(self, value)  # which refuses it
    code = getattr(self, f"on_{kind.__name__}")(value)
    if isinstance(code, str) and len(code) > 1000:
        return self.emitter.def_var("expr_split", code)
    return code


def _nets(cls: Any, nets: Any = ()) -> Any:
    return tuple.__new__(cls, (nets,) if isinstance(nets, _nir.Net) else nets)


@lru_cache(maxsize=512)
def _compiled(code: str) -> CodeType:
    return compile(
        f"globals().update((f's{{at}}', slots[place]) for at, place in enumerate('PLACES'))\n{code}",
        "<string>",
        "exec",
    )


def _compile(code: str, filename: str, mode: str) -> CodeType:
    """Return the code of a process, which calls ``update`` only for signals that change.

    In it, names stand for the places of signals, so that processes that do the same share it.
    """
    if filename != "<string>":
        return compile(code, filename, mode)
    places: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        name = places.setdefault(found[2], str(len(places)))
        return f"next_{name}" if found[1] == "next_" else f"s{name}"

    code = code.replace("(format(", "((").replace(", 'b').count('1') % 2)", ").bit_count() % 2)")  # of xor
    code = re.sub(r"\b(slots\[|next_)(\d+)\b\]?", named, code)
    made = _compiled(
        re.sub(
            r"^( +)(s\d+)\.update\((next_\d+)", r"\1if \2.next != \3: \2.update(\3", code, flags=re.MULTILINE
        )
    )
    found = tuple(map(int, places))
    return made.replace(co_consts=tuple(found if const == "PLACES" else const for const in made.co_consts))


for _kind in (_ast.Operator, _ast.Slice, _ast.Concat, _ast.SwitchValue):
    _remember_shapes(_kind)
_ast.Value.cast = staticmethod(_cast)
_dsl._check_rhs = _check_rhs
Simulator.__init__ = _simulate
_ir.Design._collect_used_signals_value = _collect
_nir.Value.__new__ = _nets
_pyrtl._ValueCompiler.on_value = _code
_pyrtl.compile = _compile
