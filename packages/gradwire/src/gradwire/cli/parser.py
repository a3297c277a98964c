"""A parser on top of argparse, with errors of one line, and help for terminals of 80 columns."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from gradwire.cli.call import current_call
from gradwire.errors import SpecError, one_line, shown, suggestion
from gradwire.units import parse_duration

EXIT_MISTAKE = 2

Chosen = TypeVar("Chosen")


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` with errors of one line, which suggest the nearest name for a misspelled name.

    The parser also applies the options in the user's settings file (``gradwire.cli.call``).
    """

    def __init__(self, prog: str, description: str, usage: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            usage=usage,
            epilog=epilog,
            formatter_class=Formatter,
            allow_abbrev=False,
            add_help=False,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does. The error for an unknown option names the nearest option."""
        words = sys.argv[1:] if args is None else list(args)
        misspelled = (
            word
            for word in takewhile(lambda word: word != "--", words)
            if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions
        )
        for word in misspelled:  # before argparse reports a missing value
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
                self.error(
                    f"argument {'/'.join(action.option_strings) or action.dest}: expected one argument"
                )
        if not unknown:
            call.apply(self, found)
        return found, unknown

    def parse_command(self, arguments: Sequence[str], example: str) -> tuple[Any, list[str]]:
        """Return the parsed options before ``--``, and the command after ``--``, which must not be empty.

        Raises ``SpecError``. If ``--`` is missing, the error shows the correct call.
        """
        own, command = split_command(arguments)
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
            near = suggestion(str(value), known)
            raise argparse.ArgumentError(
                action, f"expected one of {', '.join(known)}, got {shown(value)}{near}"
            )

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        kind = _NUMBERS.get(action.type)
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if kind is None:
                raise
            raise argparse.ArgumentError(action, f"expected {kind}, got {shown(arg_string)}") from error


_NUMBERS: Mapping[Any, str] = MappingProxyType({int: "a whole number", float: "a number"})


class Inspected(BaseException):
    """The exception that ``print_help`` raises for a caller that needs the parser instead of the help."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser)
        self.parser = parser


inspecting: ContextVar[bool] = ContextVar("inspecting", default=False)
"""The switch of ``--help``: if true, it raises ``Inspected`` with the parser instead of printing help."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter that prints an option on one line if possible."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=79)


def chosen(kind: Callable[..., Chosen], words: argparse.Namespace, **others: object) -> Chosen:
    """Return an instance of ``kind``: ``others``, and the options that have the names of its fields.

    ``kind`` is a dataclass. If an option is None, the field keeps its default.
    """
    dataclass: Any = kind
    named = {each.name: getattr(words, each.name, None) for each in fields(dataclass)} | others
    return kind(**{name: value for name, value in named.items() if value is not None})


def add_options(group: argparse._ArgumentGroup, kind: Any, names: Sequence[str]) -> None:
    """Add the options of a dataclass's fields to a group of a parser.

    The metadata of a field describe its option: ``option`` is the option's name and, unless the option is a
    switch, the name of its value; ``help`` is the help text; ``type`` and ``choices`` are argparse's. An
    option that isn't given is None.
    """
    own = {each.name: each.metadata for each in fields(kind)}
    for name in names:
        option, _, metavar = own[name]["option"].partition(" ")
        if metavar:
            more = {key: own[name][key] for key in ("type", "choices") if key in own[name]}
            group.add_argument(option, dest=name, metavar=metavar, help=own[name]["help"], **more)
        else:
            group.add_argument(option, dest=name, action="store_const", const=True, help=own[name]["help"])


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before ``--``, and the words of the command after ``--``."""
    place = words.index("--") if "--" in words else len(words)
    return [*words[:place]], [*words[place + 1 :]]


# Options that mean the same in several commands, and the functions that read their values.


def add_usual(group: argparse._ActionsContainer) -> None:
    """Add the options that every command has: ``--quiet``, ``--verbose``, and ``--help``."""
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="show no progress")
    loudness.add_argument(
        "--verbose", action="store_true", help="also show settings and the causes of errors"
    )
    group.add_argument("-h", "--help", action="help", help="show this text")


def add_timeout(group: argparse._ActionsContainer, default_s: float | None, note: str) -> None:
    """Add ``--timeout``, stored as ``timeout_s``. ``note`` completes its help: "timeout, ``note``"."""
    shown_default = "never" if default_s is None else f"{default_s:g}s"
    group.add_argument(
        "--timeout",
        dest="timeout_s",
        type=seconds,
        default=default_s,
        metavar="TIME",
        help=f"timeout, {note} (default: {shown_default})",
    )


def add_json(group: argparse._ActionsContainer, dest: str = "json") -> None:
    """Add ``--json``, the file to which a command writes its record."""
    group.add_argument(
        "--json",
        dest=dest,
        type=file_path,
        metavar="FILE",
        help="write the record as JSON to this file (-: standard output)",
    )


def add_save(group: argparse._ActionsContainer) -> None:
    """Add ``--save``, the file to which a command writes a plan."""
    group.add_argument(
        "--save",
        type=file_path,
        metavar="FILE",
        help="write the plan to this file, for attach, train, and doctor",
    )


def add_folder(group: argparse._ActionsContainer, default: str) -> None:
    """Add ``--out``, the folder of the results, and ``--overwrite``. ``default`` names the default folder."""
    group.add_argument(
        "--out", type=folder_path, metavar="DIR", help=f"folder of the results (default: {default})"
    )
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
    try:
        return parse_duration(text)
    except SpecError:
        pass
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected a time such as '30s', '500ms' or '30' (seconds), got {shown(text)}"
        ) from error


def file_path(text: str) -> Path:
    """Return the path of a file; reject an empty string, which an unset shell variable may have caused."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty string; name a file")
    return Path(text)


def folder_path(text: str) -> Path:
    """Return the path of a folder; reject an empty string, because ``Path("")`` is the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty string; name a folder, such as '.'")
    return Path(text)
