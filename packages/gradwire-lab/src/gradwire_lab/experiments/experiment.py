"""Experiments: a question, options, cells that answer the question, and a table."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from gradwire.cli.lists import between_commas, listed, whole_numbers
from gradwire.errors import LOSSY_LOGGER, SpecError
from gradwire.tables import Table
from gradwire.units import parse_size
from gradwire_lab.experiments.answer import Answer

# Options of experiments: frozen dataclasses whose fields describe their command-line options.

Kind = TypeVar("Kind")
FILE, FOLDER = "FILE", "DIR"
"""The metavars of options whose value is an existing file or folder."""
_PLACES = {FILE: ("file", Path.is_file), FOLDER: ("folder", Path.is_dir)}


@dataclass(frozen=True)
class Word:
    """The command-line option of a dataclass field: its help, parsing, and allowed values.

    By default, the name is the field's, the default ``shown`` is the field's, and ``read`` handles strings,
    numbers, paths, and lists. With ``always``, ``read`` is called with None for a missing option. ``value``
    is the metavar, which a switch (``is_switch``) lacks. ``known`` and ``least`` limit the values.
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
    """Return a dataclass field set by a command-line option. ``word`` holds the fields of its ``Word``."""
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
                got = min(values, default="none")
                raise SpecError(
                    f"expected {name} of at least {word.least}, got {got}; pass {word.least} or more"
                )
            if word.value in _PLACES and found is not None:
                kind, is_one = _PLACES[word.value]
                if not is_one(Path(found)):
                    raise SpecError(f"expected a {kind} for {name}, got {found}; pass an existing {kind}")


def add_options(parser: argparse.ArgumentParser, kind: Callable[..., object]) -> None:
    """Add a command-line option to the parser for each field of a dataclass that has a ``Word``."""
    for name, each, word in _words(kind):
        if word.is_switch:
            parser.add_argument(name, action="store_true", help=word.text)
            continue
        usual = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
        text = f"{word.text} (default: {usual if word.shown is None else word.shown})"
        if isinstance(each.default, int) and word.read is None:
            parser.add_argument(name, type=int, metavar="N", help=text)
        else:
            parser.add_argument(name, metavar=word.value, help=text)


def read_options(kind: Callable[..., Kind], words: argparse.Namespace) -> Kind:
    """Return the dataclass for parsed options; missing options keep their defaults. Raises ``SpecError``."""
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
        raise SpecError(
            f"expected {called} from {', '.join(known)}, got {(unknown or ['nothing'])[0]!r}; "
            "choose from this list"
        )


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


# The experiment.

Options = TypeVar("Options")

Cell = Mapping[str, Any]
"""The names and JSON values of one measurement: ``{"hosts": 4, "rate": "1gbit", "algorithm": "ring"}``."""
Row = Mapping[str, Any]
"""A cell with its measured figures."""
Report = Callable[[Row], None]
"""A function that receives each row as soon as it is measured."""


@dataclass(frozen=True)
class Reporter:
    """A ``Report`` that also displays progress while a row is being measured."""

    take: Report
    say: Callable[[str], None]

    def __call__(self, row: Row) -> None:
        """Report a row."""
        self.take(row)


@dataclass(frozen=True)
class Experiment(Generic[Options]):
    """An experiment: a question, its options, and the functions that measure and show the answer.

    ``options`` is a frozen dataclass whose fields describe their command-line options. ``cells`` returns the
    distinct cells to measure, in the order of the table. ``run`` measures given cells and reports a row for
    each; it also receives the rows of an interrupted run. ``table`` and ``plot`` (a PNG) show all rows, and
    ``answer`` is the table's column for the page. ``version`` is that of the rows' fields. The module imports
    torch only while the experiment measures or plots.
    """

    name: str
    question: str
    options: Callable[..., Options]
    cells: Callable[[Options], Sequence[Cell]]
    run: Callable[[Options, Sequence[Cell], Sequence[Row], Reporter], None]
    table: Callable[[Sequence[Row]], Sequence[str | Table]]
    plot: Callable[[Sequence[Row]], bytes] | None = None
    version: int = 1
    answer: Answer | None = None

    @property
    def schema(self) -> str:
        """The schema of this experiment's records."""
        return f"gradwire.experiment-{self.name}/{self.version}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the experiment's own options to a parser."""
        add_options(parser, self.options)

    def read(self, words: argparse.Namespace) -> Options:
        """Return the options for the parsed arguments. Raises ``GradwireError``."""
        return read_options(self.options, words)


def turned(names: Sequence[str], number: int, rounds: int) -> list[str]:
    """Return names rotated for one of ``rounds`` repetitions, so that each begins with a different name.

    Examples
    --------
    >>> turned(["a", "b", "c", "d"], 1, 2), turned(["a", "b", "c", "d"], 2, 2)
    (['c', 'd', 'a', 'b'], ['a', 'b', 'c', 'd'])
    """
    first = number * len(names) // rounds % len(names) if names else 0
    return [*names[first:], *names[:first]]


def is_row_of(cell: Cell, row: Row) -> bool:
    """Return whether a row is the measurement of a cell."""
    return all(name in row and row[name] == value for name, value in cell.items())


def cells_of(common: Cell = MappingProxyType({}), /, **values: Iterable[Any]) -> list[Cell]:
    """Return a cell for each combination of values. The last name varies fastest.

    Every cell also has the names of ``common``.

    Examples
    --------
    >>> cells_of({"rate": "1gbit"}, hosts=(2, 4))
    [{'rate': '1gbit', 'hosts': 2}, {'rate': '1gbit', 'hosts': 4}]
    """
    return [{**common, **dict(zip(values, each, strict=True))} for each in product(*values.values())]


def select(rows: Sequence[Row], **wanted: object) -> list[Row]:
    """Return the rows whose fields have the values in ``wanted``."""
    return [row for row in rows if is_row_of(wanted, row)]


def grouped(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Return the rows by their value of a name, in the order in which the values first appear."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


def in_order(cells: Sequence[Cell], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the cells, in the order of the cells."""
    return [row for cell in cells for row in rows if is_row_of(cell, row)]


def in_words(row: Row, cells: Sequence[Cell]) -> str:
    """Return a row's strings and numbers in one line, without values that all cells share."""
    common = {name for name in row if len(cells) > 1 and all(cell.get(name) == row[name] for cell in cells)}
    return "  ".join(
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in row.items()
        if name not in common and isinstance(value, str | int | float) and value != ""
    )


# Lossy warnings logged while a cell is measured are stored in its row and shown in reports.

LOSSY = "lossy"
"""The field of a row with the warnings logged during its measurement; absent without warnings."""
SHOWN = 3
"""The number of warnings per exhibit that a report shows; the record has all warnings."""


class HeardWarnings(logging.Handler):
    """A handler of lossy warnings of this process and its children, the only one in its ``with`` block."""

    def __init__(self) -> None:
        super().__init__()
        self._sentences: dict[str, None] = {}
        self._others: list[logging.Handler] = []

    def __enter__(self) -> HeardWarnings:
        logger = logging.getLogger(LOSSY_LOGGER)
        self._others, logger.handlers = logger.handlers, [self]
        return self

    def __exit__(self, *_error: object) -> None:
        logging.getLogger(LOSSY_LOGGER).handlers = self._others

    def emit(self, record: logging.LogRecord) -> None:
        """Store a warning, from any thread. Duplicates are dropped."""
        self._sentences[record.getMessage()] = None

    def joined(self, row: Row) -> Row:
        """Return the row with the warnings logged since the previous row."""
        sentences, self._sentences = self._sentences, {}
        heard = [*dict.fromkeys([*row.get(LOSSY, ()), *sentences])]
        return {**row, LOSSY: heard} if heard else row


def pass_on(sentence: str) -> None:
    """Log a lossy warning received from another process."""
    logging.getLogger(LOSSY_LOGGER).warning(sentence)


def lossy_warnings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the distinct warnings of all rows."""
    return (*dict.fromkeys(sentence for row in rows for sentence in row.get(LOSSY, ())),)


def warnings_in_words(sentences: Sequence[str]) -> str:
    """Return a paragraph about the warnings, or nothing without warnings."""
    if not sentences:
        return ""
    more = len(sentences) - SHOWN
    rest = f"; and {more} more in the record" if more > 0 else ""
    return f"Lossy warnings during the measurement: {'; '.join(sentences[:SHOWN])}{rest}."


# Experiments, or exhibits, by name, whose modules are imported at the first access.

T = TypeVar("T")


class Catalogue(Mapping[str, T]):
    """Objects by name, each at a ``package.module:NAME`` that is imported when it is looked up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> T:
        found: T = resolve_name(self._places[name])
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
