"""argparse with one sentence for a mistake, and help that fits a terminal of 80 columns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gradwire.errors import one_line

EXIT_MISTAKE = 2

Chosen = TypeVar("Chosen")


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake with one line and leaves the usage to ``--help``."""

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

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does; refuse ``--option=--``, whose value argparse drops before Python 3.13."""
        found, unknown = super().parse_known_args(args, namespace)
        for action in self._actions:
            if action.nargs is None and getattr(found, action.dest, None) == []:
                self.error(
                    f"argument {'/'.join(action.option_strings) or action.dest}: expected one argument"
                )
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print one line on standard error and leave."""
        sys.stderr.write(f"{self.prog}: {one_line(message)}; see {self.prog} --help\n")
        raise SystemExit(EXIT_MISTAKE)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """One line an option where it fits."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=79)


def chosen(kind: Callable[..., Chosen], words: argparse.Namespace, **others: object) -> Chosen:
    """Return the options of a dataclass that ``words`` names alike, and ``others``.

    An option that is None keeps the dataclass's default.
    """
    dataclass: Any = kind
    named = {each.name: getattr(words, each.name, None) for each in fields(dataclass)} | others
    return kind(**{name: value for name, value in named.items() if value is not None})


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before ``--``, and the command behind it."""
    place = words.index("--") if "--" in words else len(words)
    return [*words[:place]], [*words[place + 1 :]]


def file_path(text: str) -> Path:
    """Return the path of a file; refuse the empty name, which is an unset variable of a script."""
    if not text:
        raise argparse.ArgumentTypeError("name a file")
    return Path(text)


def folder_path(text: str) -> Path:
    """Return the path of a folder; refuse the empty name, which is not the folder that we are in."""
    if not text:
        raise argparse.ArgumentTypeError("name a folder ('.' is this one)")
    return Path(text)
