"""The Python reference: the public names of modules, from their docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType
from typing import Any

import gradwire

FIRST = "api"
"""The page with the names of ``gradwire`` itself, to which other pages link."""
BEGUN_WITH = ("attach", "attach_fsdp", "PipeSGD", "all_reduce")
"""The names of which most scripts use one; they come first."""
LITERAL = re.compile(r"(``.*?``)", re.DOTALL)
_of_values: dict[str, list[str]] = {}


def python_names(*wanted: str) -> str:
    """Return a section for every name, and for every public name of every module, among ``wanted``."""
    parts = []
    for each in wanted:
        module = module_of(each)
        names = [each.rpartition(".")[2]] if module.__name__ != each else public(module)
        parts += [section(module, name) for name in names]
    return "\n\n".join(parts)


def module_of(name: str) -> ModuleType:
    """Return the module with this name, or the module that contains the name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    return importlib.import_module(name.rpartition(".")[0])


def public(module: ModuleType) -> list[str]:
    """Return the names in a module's ``__all__``, or else the classes that it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        names = [name for name in listed if not inspect.ismodule(getattr(module, name))]
        first = [name for name in BEGUN_WITH if name in names]
        return [*first, *(name for name in names if name not in first)]
    return [
        name for name, value in vars(module).items() if inspect.isclass(value) and _is_home(module, value)
    ]


def _is_home(module: ModuleType, value: type) -> bool:
    return value.__module__ == module.__name__


def section(module: ModuleType, name: str) -> str:
    """Return the page's section about one name."""
    value = getattr(module, name)
    if module is not gradwire and getattr(gradwire, name, None) is value:
        return f"## {name}\n\n`gradwire.{name}` is on [another page]({FIRST}.md#{name.lower()})."
    full = f"{module.__name__}.{name}"
    if not inspect.isclass(value):
        asked = f".. auto{'function' if callable(value) else 'data'}:: {full}"
    elif issubclass(value, BaseException):
        asked = f".. autoexception:: {full}\n   :show-inheritance:"
        return f"## {name}\n\n```{{eval-rst}}\n{asked}\n```\n\n[What to do](../{value.docs})"
    else:
        asked = f".. autoclass:: {full}\n   :members:"
    return f"## {name}\n\n```{{eval-rst}}\n{asked}\n```"


def keep(_app: Any, what: str, name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Keep the docstring of a value, because napoleon mistakes the text before a colon for a type."""
    if what in ("property", "attribute", "data"):
        _of_values[name] = [*lines]


def plain(_app: Any, _what: str, name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Keep text of a docstring that Sphinx would interpret: ``|x|`` is a magnitude."""
    text = "\n".join(_of_values.pop(name, lines))
    parts = LITERAL.split(text)
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")
