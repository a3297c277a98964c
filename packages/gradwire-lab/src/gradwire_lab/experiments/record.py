"""The record of an experiment, written after every cell, so that an interrupted run can continue."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire import _native
from gradwire.checkpoints import SUM, is_as_sealed, sealed_json
from gradwire.errors import JobError, SpecError
from gradwire.files import check_folder_new, check_folder_writable, write_files
from gradwire.line_rate.display import Advance, progress
from gradwire.machine import cores, stolen_s
from gradwire.records import make_record, read_record, to_json
from gradwire.tables import show
from gradwire.units import counted
from gradwire.version import commit, how_to_install
from gradwire_lab.experiments.experiment import (
    Experiment,
    HeardWarnings,
    Options,
    Reporter,
    Row,
    in_order,
    in_words,
    is_row_of,
)

RECORD, PLOT = "record.json", "plot.png"
REMEDY = "pass another folder, or --overwrite"
SAME = ("options", "machine", "versions", "commit")
"""The fields that all rows of one record share; the commit may differ with ``across_commits``."""
COMMITS = "commits"
"""The field with the number of rows per commit, if the rows are from several commits."""


class RecordFile:
    """The record of one experiment in a folder, and its rows."""

    def __init__(
        self,
        experiment: Experiment[Any],
        options: Any,
        folder: Path,
        overwrite: bool,
        keeps_finished: bool = False,
        across_commits: bool = False,
        expected_s: float | None = None,
    ) -> None:
        """Read the rows of an unfinished record with the same options. Raises ``JobError``.

        ``keeps_finished`` also accepts a finished record, and ``across_commits`` another commit's.
        """
        self._fields = make_record(
            experiment.schema,
            {"question": experiment.question, "options": as_json(asdict(options)), "commit": commit()},
            target=_native.target(),
        )
        self.folder = folder
        self.rows: list[Row] = []
        self.is_finished = False
        self._expected_s, self._before_s, self._since = expected_s, 0.0, time.monotonic()
        self._commits: dict[str, int] = {}
        check_folder_writable("--out", folder)
        if not overwrite and any((folder / name).exists() for name in (RECORD, PLOT)):
            self._take_earlier(experiment, keeps_finished, across_commits)

    @property
    def measured_s(self) -> float:
        """The seconds spent on measuring so far, including the runs that this run continues."""
        return self._before_s + time.monotonic() - self._since

    def add(self, row: Row, finished: bool) -> None:
        """Add a row and write the record."""
        self.rows.append(row)
        name = str(self._fields["commit"])
        self._commits[name] = self._commits.get(name, 0) + 1
        self.write({}, finished)

    def write(self, files: Mapping[str, bytes], finished: bool) -> None:
        """Write the record and other files to the folder, all or none. Raises ``JobError``."""
        self.is_finished = finished
        record = {**self._fields, "measured_s": self.measured_s, "finished": finished, "rows": self.rows}
        if self._expected_s is not None:
            record["expected_s"] = self._expected_s
        if len(self._commits) > 1:
            record[COMMITS] = self._commits
        sealed = sealed_json(json.loads(to_json(record)))
        content = {RECORD: to_json(sealed).encode(), **files}
        write_files({self.folder / name: text for name, text in content.items()})

    def _take_earlier(self, experiment: Experiment[Any], keeps_finished: bool, across_commits: bool) -> None:
        found = read_rows(self.folder / RECORD, experiment)
        self.is_finished = found["finished"]
        if self.is_finished and not keeps_finished:
            check_folder_new("--out", self.folder, [RECORD, PLOT], overwrite=False)
        kind = "a finished" if self.is_finished else "an unfinished"
        if found["schema"] != experiment.schema:
            raise JobError(
                f"--out {self.folder} holds {kind} record from an older gradwire: expected the schema "
                f"{experiment.schema}, got {found['schema']}; {REMEDY}"
            )
        now = as_json(self._fields)
        for name in SAME:
            if name == "commit" and (across_commits or name not in found):
                continue  # records of an older gradwire have no commit
            if found.get(name) != now[name]:
                other = ", pass --across-commits" if name == "commit" else ""
                raise JobError(
                    f"--out {self.folder} holds {kind} record that differs in {name} "
                    f"({_difference(found.get(name), now[name])}); "
                    f"repeat with the recorded {name} to continue{other}, or {REMEDY}"
                )
        self.rows = [*found["rows"]]
        self._before_s = found["measured_s"]
        self._commits = dict(found.get(COMMITS) or {str(found.get("commit")): len(self.rows)})


def read_rows(path: Path, experiment: Experiment[Any]) -> dict[str, Any]:
    """Return the fields of the record in --out. Raises ``JobError`` for any other content."""
    try:
        return read_fields(path, experiment, REMEDY)
    except SpecError as error:
        raise JobError(f"expected a new folder or an unfinished record for --out: {error}") from error


def read_fields(path: Path, experiment: Experiment[Any], remedy: str) -> dict[str, Any]:
    """Return the fields of an experiment's record.

    Raises ``SpecError`` for another kind of file, and ``JobError`` for malformed rows or a file altered after
    it was written. An older record may lack the checksum and ``measured_s``.
    """
    record = read_record(path, experiment.schema, f"record of the experiment {experiment.name}", remedy)
    rows = record.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise JobError(f"{path} is damaged: expected a list of JSON objects as 'rows'; {remedy}")
    if not is_as_sealed(record):
        raise JobError(
            f"{path} was altered after it was written: expected the checksum {record[SUM]} over its fields "
            f"and rows, got a different checksum; restore the file, or {remedy}"
        )
    measured_s = record.get("measured_s", 0.0)
    if not isinstance(measured_s, int | float) or not measured_s >= 0:
        raise JobError(f"{path} is damaged: expected seconds as 'measured_s', got {measured_s!r}; {remedy}")
    return {**record, "measured_s": float(measured_s), "finished": bool(record.get("finished", True))}


def as_json(value: Any) -> Any:
    """Return a value as JSON represents it: tuples become lists, and paths their file names."""
    return json.loads(json.dumps(value, default=lambda path: path.name))


def _difference(before: object, now: object) -> str:
    """Return a description of the first field that differs."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"{before} instead of {now}"
    for name in sorted({*before, *now}):
        was, is_now = (fields.get(name, "missing") for fields in (before, now))
        if was != is_now:
            return f"{name} was {was} and is {is_now}"
    return ""


# Perform an experiment: measure the cells that the record lacks, store every row, and show the table.


def perform(
    experiment: Experiment[Options],
    options: Options,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    quiet: bool = False,
    keeps_finished: bool = False,
    across_commits: bool = False,
    expected_s: float | None = None,
    advance: Advance | None = None,
) -> list[Row]:
    """Measure an experiment and return its rows in the order of its cells.

    If ``out`` has an unfinished record with the same options, machine, and versions, its cells aren't
    measured again; without ``out``, nothing is written. ``keeps_finished`` returns the rows of a finished
    record instead of an error, and ``across_commits`` continues a record of a different commit. The record
    also has ``expected_s``. ``advance`` replaces the progress display. Raises ``GradwireError`` if a cell
    can't be measured, or ``out`` isn't writable or holds another result; the record keeps the cells measured
    so far.
    """
    cells = experiment.cells(options)
    record = None
    if out is not None:
        record = RecordFile(experiment, options, out, overwrite, keeps_finished, across_commits, expected_s)
    rows = [] if record is None else in_order(cells, record.rows)
    remaining = [cell for cell in cells if not any(is_row_of(cell, row) for row in rows)]
    before = tuple(rows)
    display = progress(len(cells), quiet, done=len(rows)) if advance is None else nullcontext(advance)
    with display as tell, HeardWarnings() as heard:
        others = OtherPrograms()

        def report(row: Row) -> None:
            row = others.joined(heard.joined(row))
            rows.append(row)
            if record is not None:
                record.add(row, finished=False)
            tell(len(rows), in_words(row, cells))

        try:
            if remaining:
                reporter = Reporter(report, lambda text: tell(len(rows), text))
                experiment.run(options, remaining, before, reporter)
        finally:
            if record is not None and not quiet and len(before) < len(rows) < len(cells):
                sys.stderr.write(
                    f"gradwire: {len(rows)} of {len(cells)} cells are in {record.folder}; to measure the "
                    f"other cells, repeat the command with --out {record.folder}\n"
                )
    rows = in_order(cells, rows)
    if len(rows) != len(cells):
        raise JobError(
            f"the experiment {experiment.name}: expected {len(cells)} cells, got {len(rows)}; please "
            "report this bug"
        )
    if not quiet:
        show(*experiment.table(rows))
    if record is not None and not record.is_finished:
        record.rows = rows
        record.write(_plot(experiment, rows, quiet), finished=True)
    return rows


def _plot(experiment: Experiment[Any], rows: list[Row], quiet: bool) -> dict[str, bytes]:
    """Return the plot as a PNG, or nothing if the experiment has no plot or matplotlib is missing."""
    if experiment.plot is None:
        return {}
    if importlib.util.find_spec("matplotlib") is not None:
        return {PLOT: experiment.plot(rows)}
    if not quiet:
        show("", f"The plot needs matplotlib, which isn't installed; {how_to_install('train')}.")
    return {}


# The share of the cores that other programs use while a row is measured, to reveal a busy machine.

OTHERS = "others"
"""The field of a row with the share of the cores that other programs used or a hypervisor took."""
SHORTEST_S = 1.0
"""The shortest measurement for which ``OTHERS`` is recorded: the kernel counts in ticks of 10 ms."""
PROC = Path("/proc")
_KERNEL = 2
"""The parent of kernel threads, whose time is not counted, because they work for the measurement."""


class OtherPrograms:
    """The CPU time of processes that this process did not start, unknown without Linux's ``/proc``."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._since, self._before = time.monotonic(), others_s(proc)

    def joined(self, row: Row) -> Row:
        """Return the row with ``OTHERS``, the share since the previous row."""
        began, before = self._since, self._before
        self._since, self._before = time.monotonic(), others_s(self._proc)
        took = self._since - began
        if before is None or self._before is None or took < SHORTEST_S:
            return row
        return {**row, OTHERS: min(1.0, max(0.0, self._before - before) / took / cores())}


def others_s(proc: Path = PROC) -> float | None:
    """Return the CPU seconds of processes that aren't descendants, and of a hypervisor, or None."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    try:
        stolen = stolen_s(proc)
        for path in proc.glob("[0-9]*/stat"):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:  # the process has ended
                continue
            fields = text.rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            ticks[number] = sum(map(int, fields[11:15]))
    except (OSError, IndexError, ValueError):
        return None
    own = {os.getpid(), _KERNEL}
    while more := {number for number, parent in parents.items() if parent in own} - own:
        own |= more
    others = sum(spent for number, spent in ticks.items() if number not in own)
    return stolen + others / os.sysconf("SC_CLK_TCK")


def others_in_words(rows: Sequence[Row]) -> str:
    """Return a sentence about the rows that have ``OTHERS``, or nothing without such rows.

    Examples
    --------
    >>> others_in_words([{"others": 0.004}, {"others": 0.05}, {}])
    'Other programs took 2.7 % of the cores (median of 2 rows of 3; 5.0 % at most).'
    """
    shares = [row[OTHERS] for row in rows if OTHERS in row]
    if not shares:
        return ""
    count = counted(len(shares), "row") + (f" of {len(rows)}" if len(shares) < len(rows) else "")
    median, most = 100 * statistics.median(shares), 100 * max(shares)
    return f"Other programs took {median:.1f} % of the cores (median of {count}; {most:.1f} % at most)."
