"""Settings of commands from ``gradwire.toml``, or from the table ``tool.gradwire`` of ``pyproject.toml``.

The nearest file is used: gradwire looks in the current folder and, within a Git repository, in the folder's
parents up to the repository's root. Outside of a repository, gradwire reads no parent, which may belong to
another user. In one folder, ``gradwire.toml`` takes precedence over ``pyproject.toml``. Each command has a
table with the command's options::

    [plan]
    rate = "1gbit"
    codecs = ["identity", "fp8"]

    [testbed.run]
    hosts = 4

In ``pyproject.toml``, the tables are ``tool.gradwire.plan`` and ``tool.gradwire.testbed.run``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.errors import SpecError, one_line, shown, suggestion
from gradwire.files import read_text

if TYPE_CHECKING:
    import argparse

OWN, PYPROJECT = "gradwire.toml", "pyproject.toml"
VARIABLE = "GRADWIRE_SETTINGS"
"""The environment variable with the path of the settings file, or ``off`` for no settings."""
OFF = "off"
_TABLE = "tool.gradwire"
_READERS = ("tomllib", "tomli")
"""The modules that can read TOML: the standard library's from Python 3.11 on, or the package ``tomli``."""


@dataclass(frozen=True)
class SettingsFile:
    """The settings in one file: the file's path, the name of the enclosing table, and commands' tables."""

    file: Path
    root: str
    tables: Mapping[str, Any]

    def table(self, path: Sequence[str]) -> Mapping[str, Any]:
        """Return the table of a command, such as ``("testbed", "run")``, or an empty table."""
        found: Any = self.tables
        for name in path:
            found = found.get(name, {}) if isinstance(found, Mapping) else {}
        if not isinstance(found, Mapping):
            problem = f"{self.file}: expected a table for {self.named(path)}, got {shown(found)}"
            raise SpecError(f"{problem}; write the options below the line {self.named(path)}")
        return found

    def named(self, path: Sequence[str]) -> str:
        """Return the heading of a command's table in this file, such as ``[tool.gradwire.plan]``."""
        return f"[{'.'.join(filter(None, (self.root, *path)))}]"

    def check_commands(self, known: Collection[str]) -> None:
        """Raise ``SpecError`` for a table that belongs to no command."""
        for name in self.tables:
            if name not in known:
                got = f"{name!r}{suggestion(name, known)}; see 'gradwire --help'"
                raise SpecError(f"{self.file}: expected a command in {self.named([name])}, got {got}")

    def words(
        self, path: Sequence[str], actions: Mapping[str, argparse.Action], inner: Collection[str]
    ) -> dict[str, list[str]]:
        """Return the command-line arguments for each option that the table of a command sets.

        ``actions`` maps names to the command's options. ``inner`` contains the names of the command's
        sub-commands, whose tables are skipped. Raises ``SpecError`` for an unknown option or an invalid
        value.
        """
        names = (name.removeprefix("--") for name in actions if name.startswith("--"))
        options = {name: f"--{name}" for name in names if name != "help"}
        found: dict[str, list[str]] = {}
        for key, value in self.table(path).items():
            if key in inner:
                continue
            if key not in options:
                command = f"gradwire {' '.join(path)}"
                got = f"{key!r}{suggestion(key, [*options, *inner])}; see {command} --help"
                expected = f"expected an option of {command} in {self.named(path)}"
                raise SpecError(f"{self.file}: {expected}, got {got}")
            found[options[key]] = self._words(path, key, value, is_switch=actions[options[key]].nargs == 0)
        return found

    def _words(self, path: Sequence[str], key: str, value: object, *, is_switch: bool) -> list[str]:
        if isinstance(value, bool):
            if not is_switch:
                raise self._wrong(path, key, "a value", value)
            return [f"--{key}"] if value else []
        if is_switch:
            raise self._wrong(path, key, "true or false", value)
        if isinstance(value, list) and all(isinstance(each, (str, int, float)) for each in value):
            return [f"--{key}={','.join(map(str, value))}"]
        if isinstance(value, (str, int, float)):
            return [f"--{key}={value}"]
        raise self._wrong(path, key, "a string, a number, or a list of both", value)

    def _wrong(self, path: Sequence[str], key: str, expected: str, value: object) -> SpecError:
        got = str(value).lower() if isinstance(value, bool) else shown(value)
        problem = f"{self.file}: expected {expected} for {key!r} in {self.named(path)}, got {got}"
        return SpecError(f"{problem}; set {key!r} to {expected}")


def find_settings(folder: Path) -> SettingsFile | None:
    """Return the settings for commands run in ``folder``, or None. Raises ``SpecError`` if invalid."""
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return None
    if named:
        file = Path(named)
        found = _read(file, _TABLE if file.name == PYPROJECT else "")
        if found is None:
            problem = f"{VARIABLE}: expected a file with settings or '{OFF}', got {shown(named)}"
            raise SpecError(f"{problem}; set {VARIABLE} to an existing file, or unset it")
        return found
    parents = [folder, *folder.parents]
    top = next((place for place, each in enumerate(parents) if os.path.exists(each / ".git")), 0)
    for place in parents[: top + 1]:
        for name, root in ((OWN, ""), (PYPROJECT, _TABLE)):
            found = _read(Path(os.path.relpath(place / name, folder)), root)
            if found is not None:
                return found
    return None


def _read(file: Path, root: str) -> SettingsFile | None:
    """Return the settings in a file, or None if the file or its table ``root`` doesn't exist."""
    try:
        text = read_text(file)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it isn't UTF-8 text"
        problem = f"the settings {file} cannot be read: {why}"
        raise SpecError(f"{problem}; make the file readable UTF-8, or remove the file") from error
    if root and "gradwire" not in text:
        return None  # a pyproject.toml without gradwire's settings, valid or not
    tables: Any = _parse(file, text)
    for name in filter(None, root.split(".")):
        tables = tables.get(name) if isinstance(tables, Mapping) else None
        if tables is None:
            return None
    if not isinstance(tables, Mapping):
        problem = f"{file}: expected a table for [{root}], got {shown(tables)}"
        raise SpecError(f"{problem}; write the settings below the line [{root}]")
    return SettingsFile(file, root, tables)


def _parse(file: Path, text: str) -> dict[str, Any]:
    reader = next(filter(importlib.util.find_spec, _READERS), None)
    if reader is None:
        raise SpecError(f"the settings {file} need Python 3.11, or tomli; run pip install tomli")
    try:
        found: dict[str, Any] = importlib.import_module(reader).loads(text)
    except (ValueError, RecursionError) as error:
        why = one_line(str(error)) or type(error).__name__
        raise SpecError(f"the settings {file} are not valid TOML: {why}; correct that line") from error
    return found
