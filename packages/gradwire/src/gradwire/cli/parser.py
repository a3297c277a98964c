"""A parser on top of argparse, with errors of one line, and help for terminals of 80 columns."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gradwire.cli.call import current_call
from gradwire.errors import SpecError, one_line, shown, suggestion
from gradwire.files import STANDARD_OUTPUT
from gradwire.units import parse_duration

EXIT_MISTAKE = 2

Chosen = TypeVar("Chosen")


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` with errors of one line and suggestions, which applies the settings file."""

    def __init__(self, prog: str, description: str, usage: str, epilog: str) -> None:
        # One line for an option if possible.
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=24, width=79)
        super().__init__(
            prog, usage, description, epilog, formatter_class=formatter, allow_abbrev=False, add_help=False
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does. The error for an unknown option names the nearest option."""
        words = sys.argv[1:] if args is None else list(args)
        for word in takewhile(lambda word: word != "--", words):  # before argparse reports a missing value
            if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions:
                self.error(self._unknown([word]))
        found, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the settings and the arguments; reject ``--option=--``, whose value Python < 3.13 drops."""
        args = sys.argv[1:] if args is None else list(args)
        call = current_call()
        found, unknown = super().parse_known_args([*call.words(self, args), *args], namespace)
        for action in self._actions:
            if action.nargs is None and getattr(found, action.dest, None) == []:
                name = "/".join(action.option_strings) or action.dest
                self.error(f"argument {name}: expected one argument")
        if not unknown:
            call.apply(self, found)
        return found, unknown

    def parse_command(self, arguments: Sequence[str], example: str) -> tuple[Any, list[str]]:
        """Return the parsed options before ``--``, and the command after it. Raises ``SpecError``."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        own, command = [*arguments[:at]], [*arguments[at + 1 :]]
        place = None if "--" in arguments else self._command_place(own)
        if place is not None:
            right = f"{self.prog} {shlex.join([*own[:place], '--', *own[place:]])}"
            raise SpecError(f"expected '--' before the command, got none; write {right}")
        words = self.parse_args(own)
        if not command:
            raise SpecError(f"expected a command after '--', got none; for example: {self.prog} -- {example}")
        return words, command

    def print_help(self, file: Any = None) -> None:
        """Print the help, or raise ``Inspected`` with this parser if ``inspecting`` is set."""
        if inspecting.get():
            raise Inspected(self)
        super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Print an error of one line on standard error, and exit."""
        message = re.sub(r"the following arguments are required: (.*)", r"expected \1, got none", message)
        note = current_call().note()
        sys.stderr.write(f"{self.prog}: {one_line(message)}{note}; see {self.prog} --help\n")
        raise SystemExit(EXIT_MISTAKE)

    def _unknown(self, words: Sequence[str]) -> str:
        """Return the error message for command-line words that match no option or argument."""
        if not words[0].startswith("-"):
            return f"expected no further argument, got {shown(words[0])}"
        option = words[0].partition("=")[0]
        near = suggestion(option, self._option_string_actions)
        return f"expected an option of {self.prog}, got {option}{near}"

    def _command_place(self, words: Sequence[str]) -> int | None:
        """Return the index of the first word that is neither an option nor an option's value, or None."""
        place = 0
        while place < len(words) and words[place].startswith("-"):
            option, equals, _ = words[place].partition("=")
            action = self._option_string_actions.get(option)
            if action is None:
                return None
            follows = words[place + 1] if place + 1 < len(words) else None
            takes = action.nargs is None or (action.nargs == "?" and follows in (action.choices or ()))
            place += 2 if takes and not equals else 1
        return place if place < len(words) else None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [*map(str, action.choices)]
            problem = f"expected one of {', '.join(known)}, got {shown(value)}{suggestion(str(value), known)}"
            raise argparse.ArgumentError(action, problem)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if action.type not in (int, float):
                raise
            kind = "a whole number" if action.type is int else "a number"
            raise argparse.ArgumentError(action, f"expected {kind}, got {shown(arg_string)}") from error


class Inspected(BaseException):
    """The exception that ``print_help`` raises for a caller that needs the parser instead of the help."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser)
        self.parser = parser


inspecting: ContextVar[bool] = ContextVar("inspecting", default=False)
"""The flag with which ``--help`` raises ``Inspected`` instead of printing the help."""


def chosen(kind: Callable[..., Chosen], words: argparse.Namespace, **others: object) -> Chosen:
    """Return an instance of the dataclass ``kind``, from ``others`` and options named after its fields."""
    dataclass: Any = kind
    named = {each.name: getattr(words, each.name, None) for each in fields(dataclass)} | others
    return kind(**{name: value for name, value in named.items() if value is not None})


def add_values(group: argparse._ActionsContainer, *rows: tuple[str, str, Any, Any, str]) -> None:
    """Add options with values, each a row: name, metavar, type (None: text), default, and help.

    If the value's name differs from the option's, it follows the option: ``--warm-up warmup``.
    """
    for name, metavar, kind, default, words in rows:
        option, _, dest = name.partition(" ")
        dest = dest or option.removeprefix("--").replace("-", "_")
        group.add_argument(option, dest=dest, metavar=metavar, type=kind, default=default, help=words)


def add_options(group: argparse._ArgumentGroup, kind: Any, names: Sequence[str]) -> None:
    """Add the options of a dataclass's fields to a group of a parser.

    The metadata of a field describe its option: ``option`` is the option's name and, unless the option is a
    switch, the name of its value; ``help`` is the help text; ``type`` and ``choices`` are argparse's. An
    option that isn't given is None.
    """
    own = {each.name: each.metadata for each in fields(kind)}
    for name in names:
        option, _, metavar = own[name]["option"].partition(" ")
        how: dict[str, Any] = {"action": "store_const", "const": True}
        if metavar:
            how = {"metavar": metavar} | {
                key: own[name][key] for key in ("type", "choices") if key in own[name]
            }
        group.add_argument(option, dest=name, help=own[name]["help"], **how)


# Options that mean the same in several commands, and the functions that read their values.


def add_usual(group: argparse._ActionsContainer) -> None:
    """Add the options that every command has: ``--quiet``, ``--verbose``, and ``--help``."""
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="show no progress")
    verbose = "also show settings and the causes of errors"
    loudness.add_argument("--verbose", action="store_true", help=verbose)
    group.add_argument("-h", "--help", action="help", help="show this text")


def add_timeout(group: argparse._ActionsContainer, default_s: float | None, note: str) -> None:
    """Add ``--timeout``, stored as ``timeout_s``. ``note`` completes its help: "timeout, ``note``"."""
    text = f"timeout, {note} (default: {'never' if default_s is None else f'{default_s:g}s'})"
    group.add_argument(
        "--timeout", dest="timeout_s", type=seconds, default=default_s, metavar="TIME", help=text
    )


def add_json(group: argparse._ActionsContainer, dest: str = "json") -> None:
    """Add ``--json``, the file to which a command writes its record."""
    text = "write the record as JSON to this file (-: standard output)"
    group.add_argument("--json", dest=dest, type=output_path, metavar="FILE", help=text)


def add_save(group: argparse._ActionsContainer) -> None:
    """Add ``--save``, the file to which a command writes a plan."""
    text = "write the plan to this file, for attach, train, and doctor"
    group.add_argument("--save", type=file_path, metavar="FILE", help=text)


def add_folder(group: argparse._ActionsContainer, default: str) -> None:
    """Add ``--out``, the folder of the results, and ``--overwrite``. ``default`` names the default folder."""
    text = f"folder of the results (default: {default})"
    group.add_argument("--out", type=folder_path, metavar="DIR", help=text)
    add_overwrite(group)


def add_overwrite(group: argparse._ActionsContainer) -> None:
    """Add ``--overwrite``, with which a command replaces older results."""
    group.add_argument("--overwrite", action="store_true", help="replace older results")


def seconds(text: str) -> float:
    """Return the time in ``text``, such as ``500ms`` or ``30s``, in seconds. A number alone is in seconds.

    Examples
    --------
    >>> seconds("30"), seconds("30s"), seconds("500ms")
    (30.0, 30.0, 0.5)
    """
    with suppress(SpecError):
        return parse_duration(text)
    try:
        return float(text)
    except ValueError as error:
        problem = f"expected a time such as '30s', '500ms' or '30' (seconds), got {shown(text)}"
        raise argparse.ArgumentTypeError(problem) from error


def check_range(option: str, value: int, low: int, high: int) -> None:
    """Raise ``SpecError`` unless an option's value is from ``low`` to ``high``."""
    if not low <= value <= high:
        raise SpecError(f"expected {low} to {high} for {option}, got {value}; pass a number in this range")


def file_path(text: str) -> Path:
    """Return the path of a file; reject ``-``, because only ``--json`` may be standard output."""
    found = output_path(text)
    if found == STANDARD_OUTPUT:
        problem = f"expected a file, got {shown(text)}, which only --json accepts; name one"
        raise argparse.ArgumentTypeError(problem)
    return found


def output_path(text: str) -> Path:
    """Return a path, which may be ``-``; reject an empty string, which an unset variable may have caused."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty string; name a file")
    return Path(text)


def folder_path(text: str) -> Path:
    """Return the path of a folder; reject an empty string, because ``Path("")`` is the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty string; name a folder, such as '.'")
    return Path(text)
