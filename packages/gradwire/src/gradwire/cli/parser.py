"""argparse with one-line errors, and help for terminals of 80 columns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gradwire import collectives, plugins
from gradwire.errors import SpecError, one_line, shown
from gradwire.units import format_size, parse_whole

EXIT_MISTAKE = 2

Chosen = TypeVar("Chosen")


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that reports an error in one line, without the usage."""

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
        """Parse as argparse does; reject ``--option=--``, whose value argparse drops before Python 3.13."""
        found, unknown = super().parse_known_args(args, namespace)
        for action in self._actions:
            if action.nargs is None and getattr(found, action.dest, None) == []:
                self.error(
                    f"argument {'/'.join(action.option_strings) or action.dest}: expected one argument"
                )
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print one line on standard error and exit."""
        sys.stderr.write(f"{self.prog}: {one_line(message)}; see {self.prog} --help\n")
        raise SystemExit(EXIT_MISTAKE)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter that prints one line per option if it fits."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=79)


def chosen(kind: Callable[..., Chosen], words: argparse.Namespace, **others: object) -> Chosen:
    """Return an instance of a dataclass from the options with its fields' names, and ``others``.

    An option that is None keeps the dataclass's default.
    """
    dataclass: Any = kind
    named = {each.name: getattr(words, each.name, None) for each in fields(dataclass)} | others
    return kind(**{name: value for name, value in named.items() if value is not None})


def add_options(group: argparse._ArgumentGroup, kind: Any, names: Sequence[str]) -> None:
    """Add the options of a dataclass's fields to a group of a parser.

    The metadata of a field describe its option: ``option`` is its name with the name of its value, or alone
    for a switch; ``help`` is its help; ``type`` and ``choices`` are argparse's. A missing option is None.
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
    """Return the words before ``--``, and the command after it."""
    place = words.index("--") if "--" in words else len(words)
    return [*words[:place]], [*words[place + 1 :]]


def file_path(text: str) -> Path:
    """Return the path of a file; reject an empty name, which may be an unset variable of a script."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one; name a file")
    return Path(text)


def folder_path(text: str) -> Path:
    """Return the path of a folder; reject an empty name, which isn't the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one; name a folder ('.' is this one)")
    return Path(text)


# Lists on the command line: sizes of a sweep, codecs, algorithms, and numbers of ranks.

MOST_NBYTES = 1 << 32


def geometric(low_nbytes: int, high_nbytes: int, factor: int) -> tuple[int, ...]:
    """Return ``low``, ``low * factor``, ... up to ``high``. Raises ``SpecError``.

    Examples
    --------
    >>> geometric(1, 10, 2)
    (1, 2, 4, 8)
    """
    if factor < 2:
        raise SpecError(f"expected a whole number from 2 up for --factor, got {factor}")
    if not 1 <= low_nbytes <= high_nbytes:
        raise SpecError(
            f"expected sizes from 1 byte up for --min and --max, got {low_nbytes} and {high_nbytes}"
        )
    _check_most(high_nbytes)
    sizes = [low_nbytes]
    while sizes[-1] * factor <= high_nbytes:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def listed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes in ascending order. Raises ``SpecError`` if one is repeated, is 0, or is too large."""
    if min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise SpecError(f"expected different sizes from 1 byte up, got {', '.join(map(str, sizes))}")
    _check_most(max(sizes))
    return tuple(sorted(sizes))


def codec_specs(text: str) -> tuple[str, ...]:
    """Return the canonical specs of ``identity,quantize:8,block=256,fp16``. Raises ``SpecError``.

    Examples
    --------
    >>> codec_specs("identity,quantize:8,block=256,fp16")
    ('identity', 'quantize:8,block=256', 'fp16')
    """
    from gradwire.codecs import known_names, parse  # only some commands need the kernels

    return _once("--codecs", tuple(str(parse(spec)) for spec in _specs(text, known_names())))


def algorithm_specs(text: str) -> tuple[str, ...]:
    """Return the specs of ``ring,hierarchical:4,ring+star,tree``. Raises ``SpecError``.

    Examples
    --------
    >>> algorithm_specs("ring,hierarchical:4,ring+star,tree")
    ('ring', 'hierarchical:4,ring+star', 'tree')
    """
    known = {*collectives.NAMES, *plugins.names(plugins.ALGORITHMS)}
    specs = _once("--algorithms", _specs(text, known))
    for spec in specs:
        collectives.get(spec)
    return specs


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the different whole numbers of a list separated by commas. Raises ``SpecError``."""
    numbers = []
    for word in _once(option, between_commas(text)):
        number = parse_whole(word)
        if number is None:
            raise SpecError(
                f"expected whole numbers separated by commas (2,4,8) for {option}, got {shown(text)}"
            )
        numbers.append(number)
    return tuple(numbers)


def _specs(text: str, known: set[str]) -> tuple[str, ...]:
    """Return the specs of a list; a comma may separate specs, or be part of one."""
    specs: list[str] = []
    for part in between_commas(text):
        begins = part.partition(":")[0] in known or ":" in part
        if specs and not begins and ("=" in part or ":" in specs[-1]):
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return tuple(specs)


def between_commas(text: str) -> tuple[str, ...]:
    """Return the words of a list separated by commas, without surrounding blanks.

    Examples
    --------
    >>> between_commas("mlp, cnn")
    ('mlp', 'cnn')
    """
    return tuple(part.strip() for part in text.split(","))


def _once(option: str, words: tuple[str, ...]) -> tuple[str, ...]:
    for number, word in enumerate(words):
        if word in words[:number]:
            raise SpecError(f"expected different words for {option}, got {word} twice; remove one")
    return words


def _check_most(nbytes: int) -> None:
    if nbytes > MOST_NBYTES:
        raise SpecError(f"expected a size up to {format_size(MOST_NBYTES)}, got {format_size(nbytes)}")
