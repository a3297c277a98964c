"""Options of experiments: frozen dataclasses whose fields describe their command-line options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from gradwire.cli.parser import between_commas, listed, whole_numbers
from gradwire.errors import SpecError
from gradwire.units import parse_size

Kind = TypeVar("Kind")
FILE, FOLDER = "FILE", "DIR"
"""Metavars of options whose value is an existing file or folder."""
_PLACES: Mapping[str, tuple[str, Callable[[Path], bool]]] = MappingProxyType(
    {FILE: ("file", Path.is_file), FOLDER: ("folder", Path.is_dir)}
)


@dataclass(frozen=True)
class Word:
    """The command-line option of a dataclass field: its help, parsing, and allowed values.

    Attributes
    ----------
    text, shown
        The help text, and the default shown in it (the field's default if None).
    name, value
        The option (by default, from the field's name), and its metavar.
    is_switch
        Whether the option takes no value and sets the field to true.
    read
        Converts the option's text to the field's value. The default handles strings, numbers, paths, and
        lists.
    always
        Whether ``read`` also runs, with None, if the option is missing.
    known, least
        The allowed texts, and the smallest allowed number.
    """

    text: str
    shown: str | None = None
    name: str = ""
    value: str = "LIST"
    is_switch: bool = False
    read: Callable[[Any], Any] | None = None
    always: bool = False
    known: Collection[str] = ()
    least: int | None = None


def option(default: Any, text: str, **word: Any) -> Any:
    """Return a dataclass field set by a command-line option; ``word`` holds the fields of its ``Word``."""
    return field(default=default, metadata={"word": Word(text, **word)})


class CheckedOptions:
    """Base class of options that checks each value against its ``Word``. Raises ``SpecError``."""

    def __post_init__(self) -> None:
        for name, each, word in _words(type(self)):
            found = getattr(self, each.name)
            values = found if isinstance(found, tuple) else (found,)
            if word.known:
                check_known(name, values, word.known)
            if word.least is not None and (not values or min(values) < word.least):
                raise SpecError(f"expected {name} of {word.least} or more, got {min(values, default='none')}")
            if word.value in _PLACES and found is not None:
                kind, is_one = _PLACES[word.value]
                if not is_one(Path(found)):
                    raise SpecError(f"expected a {kind} for {name}, got {found}; pass one that exists")


def add_options(parser: argparse.ArgumentParser, kind: Callable[..., object]) -> None:
    """Add a command-line option to the parser for each field of a dataclass that has a ``Word``."""
    for name, each, word in _words(kind):
        if word.is_switch:
            parser.add_argument(name, action="store_true", help=word.text)
            continue
        usual = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
        text = f"{word.text} ({usual if word.shown is None else word.shown})"
        if isinstance(each.default, int) and word.read is None:
            parser.add_argument(name, type=int, metavar="N", help=text)
        else:
            parser.add_argument(name, metavar=word.value, help=text)


def read_options(kind: Callable[..., Kind], words: argparse.Namespace) -> Kind:
    """Return the dataclass built from parsed options; missing options keep the defaults of their fields.

    Raises ``SpecError``.
    """
    given: dict[str, Any] = {}
    for name, each, word in _words(kind):
        said = getattr(words, name.removeprefix("--").replace("-", "_"))
        if word.always or (said is not None and said is not False):
            given[each.name] = (word.read or _reader(name, each.default, word))(said)
    return kind(**given)


def check_known(called: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise ``SpecError`` unless ``names`` is not empty and every name is in ``known``."""
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SpecError(f"expected {called} among {', '.join(known)}, got {(unknown or ['nothing'])[0]!r}")


def sizes_between_commas(text: str) -> tuple[int, ...]:
    """Return the sizes of a list such as ``2MiB,8MiB``. Raises ``SpecError``."""
    return listed(tuple(map(parse_size, text.split(","))))


def _words(kind: Any) -> Iterator[tuple[str, Field[Any], Word]]:
    """Yield each option with its field and its ``Word``."""
    for each in fields(kind):
        if "word" in each.metadata:
            word = each.metadata["word"]
            yield word.name or f"--{each.name.replace('_', '-')}", each, word


def _reader(name: str, default: object, word: Word) -> Callable[[Any], Any]:
    if word.value in _PLACES:
        return lambda text: Path(text).absolute()
    if not isinstance(default, tuple):
        return lambda said: said
    if default and isinstance(default[0], int):
        return lambda text: whole_numbers(name, text)
    return lambda text: tuple(dict.fromkeys(between_commas(text))) if text else ()
