"""One call of the command ``gradwire``: its settings, its verbosity, and the path of its record."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.cli.settings import SettingsFile
from gradwire.files import STANDARD_OUTPUT, output_kept_for_files
from gradwire.log import VARIABLE as LEVEL

if TYPE_CHECKING:
    import argparse


class Call:
    """One call of ``command``, which adds the settings file's options to the user's arguments."""

    def __init__(self, command: str | None = None, settings: SettingsFile | None = None) -> None:
        self._command, self._settings = command, settings
        self._set: dict[str, list[str]] = {}
        self.undo = ExitStack()  # of the options' effects on this process, such as environment variables
        self.is_verbose = False

    def words(self, parser: argparse.ArgumentParser, given: Sequence[str]) -> list[str]:
        """Return the settings file's arguments that the user's do not override. Raises ``SpecError``."""
        path = parser.prog.split()[1:]
        if self._settings is None or path[:1] != [self._command]:
            return []
        arguments = (action for action in parser._actions if not action.option_strings)
        inner = [each for action in arguments for each in action.choices or ()]
        actions = parser._option_string_actions
        found = self._settings.words(path, actions, inner)
        said = {id(actions[name]) for word in given if (name := word.partition("=")[0]) in actions}
        for group in parser._mutually_exclusive_groups:
            if any(id(each) in said for each in group._group_actions):
                said |= {id(each) for each in group._group_actions}
        kept = {name: words for name, words in found.items() if words and id(actions[name]) not in said}
        self._set |= kept
        return [word for words in kept.values() for word in words]

    def apply(self, parser: argparse.ArgumentParser, found: Any) -> None:
        """Apply the parsed values of the options that every command has, such as ``--quiet``."""
        if parser.prog.split()[1:2] != [self._command]:
            return
        for name, level in (("quiet", "quiet"), ("verbose", "debug")):
            if getattr(found, name, False):
                self.undo.callback(_restore, LEVEL, os.environ.get(LEVEL))
                os.environ[LEVEL] = level
        if getattr(found, "verbose", False):
            self.is_verbose = True
            for words in self._set.values():
                sys.stderr.write(f"gradwire: {self._file} sets {' '.join(words)}\n")
        record = getattr(found, "json", None) or getattr(found, "json_file", None)
        if record == STANDARD_OUTPUT:
            self.undo.enter_context(output_kept_for_files())

    def note(self) -> str:
        """Return a note for errors that names the options from the settings file, or "" if there are none."""
        return f" ({self._file} sets {', '.join(self._set)})" if self._set else ""

    @property
    def _file(self) -> Path:
        assert self._settings is not None
        return self._settings.file


_CALL: ContextVar[Call] = ContextVar("call")


def current_call() -> Call:
    """Return the current call of ``gradwire``, or a call without settings outside of a command."""
    return _CALL.get(Call())


@contextmanager
def serving(call: Call) -> Iterator[Call]:
    """Make ``call`` the current call in a ``with`` block, and undo its effects at the end."""
    token = _CALL.set(call)
    try:
        yield call
    finally:
        _CALL.reset(token)
        call.undo.close()


def _restore(name: str, before: str | None) -> None:
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before
