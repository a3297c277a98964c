"""Measure the figures of the documentation, write tables and charts, and refuse tables without a record.

``measure [NAME ...]`` performs the experiments of ``FIGURES`` on this machine, with one record each under
``docs/measured``. After an interruption, repeat the command to continue. ``write`` inserts the records'
tables into the pages, between a pair of comments, and draws their charts in ``docs/images``. ``check`` fails
if a table or a chart is missing or outdated, or if a page has another table of figures that
``docs/measured/unrecorded.toml`` doesn't list.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradwire.checkpoints import SUM
from gradwire.errors import GradwireError, SpecError
from gradwire.machine import describe_machine
from gradwire.page import Picture
from gradwire.tables import Column, Table
from gradwire.units import counted
from gradwire_lab.experiments import EXPERIMENTS, Experiment, perform, prediction
from gradwire_lab.experiments.charts import chart_file, gain_chart, losses_chart, speed_chart, steps_chart
from gradwire_lab.experiments.claim import Basis, Verdict
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.experiments.page import read_all
from gradwire_lab.experiments.papers import EXHIBITS, PAPERS
from gradwire_lab.experiments.papers.reproduce import MEASURED as MEASURED_BESIDE
from gradwire_lab.experiments.papers.reproduce import NOT_RUN, basis_of, by_basis
from gradwire_lab.experiments.record import COMMITS, RECORD, others_in_words, read_fields
from gradwire_lab.experiments.speeds import ATTACHED, HOOK, JUDGE, NOTE, PIPELINED, POWER_SGD, summary

ROOT = Path(__file__).parent.parent
MEASURED, IMAGES = Path("docs", "measured"), Path("docs", "images")
UNRECORDED = MEASURED / "unrecorded.toml"
COMMAND = "python scripts/figures.py"
FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "mnist-mlp-4-hosts": "training-speed --tasks mnist-mlp --seeds 5",
        "mnist-mlp-2-hosts": "training-speed --tasks mnist-mlp --hosts 2 --seeds 5",
        "wide-mlp-4-hosts": "training-speed --tasks wide-mlp",
        "gpt-4-hosts": "training-speed --tasks gpt",
        "weight-delta": "weight-delta",
        "cifar-cnn-4-hosts": "training-speed --tasks cifar-cnn",
        "gain": "gain --against docs/measured",
        "prediction-near": "prediction",
        "prediction-distant": "prediction --networks distant,4:100mbit:50ms --sizes 8MiB",
    }
)
"""The measurements by record name, as arguments of ``gradwire experiment``."""
AGAIN = "measure it again"
SUMMARY, VERDICTS = "summary", "verdicts"
"""Blocks from several records: the main tasks' speeds, and the counts of the papers' verdicts."""
REPRODUCED = Path("docs", "reproduced")
OF_MEASURED = [each for each in Verdict if each not in (*map(str, Basis), NOT_RUN)]
"""The verdicts on measured figures, in the order of reports."""
TASKS = MappingProxyType(
    {
        "mnist-mlp-4-hosts": "MNIST-MLP, 2.6 MB",
        "wide-mlp-4-hosts": "MLP, 74 MB",
        "gpt-4-hosts": "GPT, 43 MB",
    }
)
METHODS = MappingProxyType(
    {
        JUDGE: "plain DDP",
        HOOK: "PyTorch's bfloat16 hook",
        POWER_SGD: "PyTorch's PowerSGD hook, rank 1",
        ATTACHED: "`gradwire.attach(model)`",
        PIPELINED: "`gradwire.PipeSGD(model, optimizer)`",
    }
)
"""Columns and rows of the summary."""
TITLES = MappingProxyType(
    {
        "mnist-mlp-2-hosts": "MNIST-MLP, 2 hosts",
        "mnist-mlp-4-hosts": "MNIST-MLP",
        "wide-mlp-4-hosts": "74 MB MLP",
        "gpt-4-hosts": "GPT",
        "cifar-cnn-4-hosts": "CNN",
        "gain": "",
    }
)
"""The titles of records in charts."""
SPEEDS = tuple(name for name in TITLES if name != "gain")
CHARTS: Mapping[str, tuple[Sequence[str], Callable[[Mapping[str, Sequence[Row]]], Picture]]] = (
    MappingProxyType(
        {
            "training_speed.svg": (SPEEDS, speed_chart),
            "codec_steps.svg": (SPEEDS, steps_chart),
            "auto_losses.svg": (("wide-mlp-4-hosts", "cifar-cnn-4-hosts"), losses_chart),
            "gain.svg": (("gain",), gain_chart),
        }
    )
)
"""The files in ``docs/images`` that are drawn from records, each with the records' names and its function."""
KINDS = ("measured elsewhere", "published", "computed", "setting")
"""Reasons why a table of figures needs no record.

The figures were measured earlier without a record, are published in a paper, are computed by a formula or
counted and checked by a test, or are set by the user.
"""
BLOCK = re.compile(r"<!-- measured: (?P<name>\S+) -->\n(?P<text>.*?)<!-- end of measured -->", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^(?P<head>\|.*\|)\n\|[-:| ]+\|\n(?P<body>(?:\|.*\|\n?)*)", re.MULTILINE)
UNIT = r"(?:ms|s|us|µs|min|h|x|%|times|[kMG]?B/s|[MG]bit/s|[kM]B|MHz)"
FIGURE = re.compile(rf"[*<>~≤≥+-]*\d[\d.,]*\s?{UNIT}(?![\w-])")
NUMBER = re.compile(r"[*<>~≤≥+-]*\d[\d,]*(?P<decimals>\.\d+)?[*]*(?![\w.:-])")
QUANTITY = re.compile(
    rf"\b{UNIT[:-1]}|seconds?|speed-?ups?|faster|time|ratio|errors?|loss|accuracy|measured|predicted|median)(?!\w)|%"
)
LEAST, LONGEST = 2, 60
"""The number of figures that makes a table a table of figures, and the longest cell that isn't prose."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, or check; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="perform experiments and write their records")
    measuring.add_argument(
        "names", metavar="NAME", nargs="*", help=f"records to measure: {', '.join(FIGURES)}"
    )
    measuring.add_argument("--overwrite", action="store_true", help="measure finished records again")
    measuring.add_argument("--across-commits", action="store_true", help="continue records of other commits")
    commands.add_parser("write", help="insert the records' tables into the pages, and draw their charts")
    commands.add_parser("check", help="fail if a page has a table of figures without a record")
    words = parser.parse_args(arguments)
    try:
        if words.command == "measure":
            names, across = words.names or list(FIGURES), words.across_commits
            measure(names, overwrite=words.overwrite, across_commits=across)
            return 0
        if words.command == "write":
            write(ROOT)
        found = list(check(ROOT))
    except GradwireError as error:
        found = [f"gradwire: {error}"]
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    return 1 if found else 0


def measure(
    names: Sequence[str], *, overwrite: bool = False, across_commits: bool = False, root: Path = ROOT
) -> None:
    """Perform the experiments whose records aren't finished; interrupted experiments are continued."""
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise SpecError(f"expected some of {', '.join(FIGURES)}, got {unknown[0]!r}; choose from these names")
    for name in names:
        experiment, options = experiment_of(FIGURES[name])
        folder = root / MEASURED / name / machine_name()
        if not overwrite and is_finished(folder / RECORD, experiment):
            sys.stdout.write(f"{name}: finished; to measure it again, pass --overwrite\n")
            continue
        sys.stdout.write(f"{name}: gradwire experiment {FIGURES[name]}\n")
        perform(experiment, options, folder, overwrite=overwrite, across_commits=across_commits)


def experiment_of(words: str) -> tuple[Experiment[Any], Any]:
    """Return the experiment and options described by the arguments of a command line."""
    name, *rest = words.split()
    experiment, parser = EXPERIMENTS[name], argparse.ArgumentParser()
    experiment.add_arguments(parser)
    return experiment, experiment.read(parser.parse_args(rest))


def machine_name() -> str:
    """Return a folder name for this kind of machine."""
    machine = describe_machine()
    plain = re.sub(r"\(\w+\)|[^a-z0-9]+", " ", str(machine["processor"]).lower()).split()
    return "-".join([f"{machine['cores']}-cores", *plain])


def is_finished(path: Path, experiment: Experiment[Any]) -> bool:
    """Return whether a record exists, has the current schema, and is finished."""
    if not path.exists():
        return False
    fields = _fields(path, experiment)
    return bool(fields["finished"]) and fields["schema"] == experiment.schema


def write(root: Path) -> None:
    """Insert the records' tables into all pages."""
    for path in pages(root):
        before = path.read_text(encoding="utf-8")
        after = BLOCK.sub(lambda found: _block(found["name"], root), before)
        if after != before:
            path.write_text(after, encoding="utf-8")
    for path, drawn in charts(root):
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")


def charts(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the content of each chart whose records exist; the first machine's records count."""
    for file, (names, make) in CHARTS.items():
        found = {TITLES[name]: each[0]["rows"] for name in names if (each := records(name, root))}
        if found:
            yield root / IMAGES / file, chart_file(make(found))


def check(root: Path) -> Iterator[str]:
    """Yield the blocks that differ from their records, and the tables of figures without a record."""
    listed = Counter[tuple[str, str]]()
    for entry in unrecorded(root):
        listed[entry["page"], entry["head"]] += 1
    for path in pages(root):
        text, page = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        for found in BLOCK.finditer(text):
            if found[0] != _block(found["name"], root):
                yield f"{page}: {found['name']} differs from its records; run {COMMAND} write"
        for head in figure_tables(text):
            if listed[page, head]:
                listed[page, head] -= 1
                continue
            yield (
                f"{page}: no record backs the table of figures {head!r}; measure it ({COMMAND} measure), or "
                f"state the reason in {UNRECORDED}"
            )
    for path, drawn in charts(root):
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            yield f"{path.relative_to(root)}: differs from its records; run {COMMAND} write"
    for (page, head), count in listed.items():
        if count:
            yield f"{UNRECORDED}: {page} has no such table of figures: {head!r}; remove the entry"


def pages(root: Path) -> list[Path]:
    """Return the pages whose figures need records."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def unrecorded(root: Path) -> list[Mapping[str, str]]:
    """Return the listed tables of figures without a record, each with its reason."""
    entries = tomllib.loads((root / UNRECORDED).read_text(encoding="utf-8")).get("table", [])
    for entry in entries:
        if entry.keys() != {"page", "head", "kind", "reason"} or entry["kind"] not in KINDS:
            raise SpecError(
                f"{UNRECORDED}: expected page, head, kind ({', '.join(KINDS)}), reason, got {entry}; edit it"
            )
    return list(entries)


def figure_tables(page: str) -> Iterator[str]:
    """Yield the heads of a page's tables of figures, outside blocks and code."""
    for found in TABLE.finditer(BLOCK.sub("", FENCE.sub("", page))):
        head = _cells(found["head"])
        rows = [_cells(line) for line in found["body"].splitlines()]
        columns = list(zip(*[row for row in rows if len(row) == len(head)], strict=True))[1:]
        figures = [
            cell
            for name, column in zip(head[1:], columns, strict=False)
            for cell in column
            if len(cell) <= LONGEST and _is_figure(cell, f"{head[0]} {name}")
        ]
        if len(figures) >= LEAST:
            yield " | ".join(head)


def _is_figure(cell: str, head: str) -> bool:
    """Return whether a cell is a number with a unit, with decimals, or under a head that names a quantity."""
    number = NUMBER.match(cell)
    return bool(FIGURE.match(cell) or (number and (number["decimals"] or QUANTITY.search(head))))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]


def _block(name: str, root: Path) -> str:
    """Return a block with its comments. Raises ``SpecError`` for an unknown name."""
    several = {SUMMARY: rendered_summary, VERDICTS: rendered_verdicts}
    if name not in (*FIGURES, *several):
        known = ", ".join([*FIGURES, *several])
        raise SpecError(f"measured: expected one of {known}, got {name!r}; correct the comment")
    text = several[name](root) if name in several else rendered(name, root)
    return f"<!-- measured: {name} -->\n\n{text}\n\n<!-- end of measured -->"


def rendered(name: str, root: Path) -> str:
    """Return a figure's tables as Markdown, per machine with a record, without the note of the page."""
    experiment, _ = experiment_of(FIGURES[name])
    parts = []
    for record in records(name, root):
        rows = record["rows"]
        every = [prediction.summary(rows)] if experiment is prediction.EXPERIMENT else experiment.table(rows)
        table = [each for each in every if each and each != NOTE]
        head = f"**{_machine(record)}**", others_in_words(rows)
        parts.append("\n\n".join(filter(None, [*head, *map(markdown, table)])))
    return "\n\n".join(parts) or not_measured(name)


def rendered_summary(root: Path) -> str:
    """Return the summary as Markdown: a table per machine, or one table if each task has one machine."""
    by_machine: dict[str, dict[str, Sequence[Row]]] = {}
    for name, title in TASKS.items():
        for record in records(name, root):
            by_machine.setdefault(_machine(record, with_versions=False), {})[title] = record["rows"]
    if not (machines := dict(sorted(by_machine.items()))):
        return not_measured(*TASKS)
    distinct = {title for found in machines.values() for title in found}
    if len(machines) > 1 and sum(map(len, machines.values())) == len(distinct):
        machines = {
            "; ".join(
                f"{' and '.join(title.partition(',')[0] for title in found)} on {machine}"
                for machine, found in machines.items()
            ): {title: rows for found in machines.values() for title, rows in found.items()}
        }
    return "\n\n".join(f"{where}:\n\n{markdown(summary(each, METHODS))}" for where, each in machines.items())


def rendered_verdicts(root: Path) -> str:
    """Return the verdicts on figures with and without a published counterpart, as Markdown.

    Exhibits without a record are listed below the tables.
    """
    recorded = {each.judged.exhibit.name: each.judged for each in read_all(root / REPRODUCED, EXHIBITS)}
    counts = {paper: Counter[Verdict]() for paper in PAPERS}
    for judged in recorded.values():
        counts[judged.exhibit.paper].update(
            claim.verdict for claim in judged.claims if basis_of(claim) == MEASURED_BESIDE
        )
    verdicts = [each for each in OF_MEASURED if any(found[each] for found in counts.values())]
    columns = [Column("paper", is_text=True), *(Column(str(verdict)) for verdict in verdicts)]
    rows = [(f"`{paper}`", *(str(found[each]) for each in verdicts)) for paper, found in counts.items()]
    others = {name: (count, found) for name, count, found in by_basis([*recorded.values()])}
    others.pop(MEASURED_BESIDE, None)
    idle, _ = others.pop(NOT_RUN, (0, ""))
    apart = [
        Column("not in the counts above", is_text=True),
        Column("figures"),
        Column("verdicts", is_text=True),
    ]
    missing = [f"`{each.name}`" for each in EXHIBITS if each.name not in recorded]
    parts = [markdown(Table(columns, rows))]
    if others:
        parts.append(
            markdown(Table(apart, [(name, str(count), found) for name, (count, found) in others.items()]))
        )
    if idle:
        parts.append(f"Not run, for reasons that the page gives: {counted(idle, 'figure')}.")
    if missing:
        parts.append(f"Not measured yet with their current rules: {', '.join(missing)}.")
    return "\n\n".join(parts)


def not_measured(*names: str) -> str:
    """Return the text that replaces a table without a record."""
    return f"*Not measured yet on this code: `{COMMAND} measure {' '.join(names)}`.*"


def records(name: str, root: Path) -> list[dict[str, Any]]:
    """Return the finished records of a figure, one per machine."""
    experiment, _ = experiment_of(FIGURES[name])
    paths = sorted((root / MEASURED / name).glob(f"*/{RECORD}"))
    return [_fields(path, experiment) for path in paths if is_finished(path, experiment)]


def _fields(path: Path, experiment: Experiment[Any]) -> dict[str, Any]:
    fields = read_fields(path, experiment, AGAIN)
    if SUM not in fields:
        raise SpecError(f"{path} has no checksum; {AGAIN}")
    return fields


def markdown(part: str | Table) -> str:
    """Return a paragraph or a table as Markdown; figures are right-aligned."""
    if isinstance(part, str):
        return part
    table = part.without_empty()
    heads = [f"{column.name}, {column.unit}" if column.unit else column.name for column in table.columns]
    rules = ["---" if column.is_text else "---:" for column in table.columns]
    lines = [heads, rules, *table.rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _machine(record: Mapping[str, Any], *, with_versions: bool = True) -> str:
    machine, versions = record["machine"], record["versions"]
    text = f"{machine['cores']} cores of {machine['processor']}"
    if not with_versions:
        return text
    commits = [str(each)[:10] for each in record.get(COMMITS) or [record.get("commit")]]
    return f"{text}, PyTorch {versions['torch']}, gradwire {versions['gradwire']} at {', '.join(commits)}"


if __name__ == "__main__":
    sys.exit(main())
