"""Figures of the documentation: tables come from records, and others are refused unless they are listed."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradwire.checkpoints import sealed_json
from gradwire.errors import GradwireError
from gradwire_lab.experiments import training_speed
from gradwire_lab.experiments.claim import Basis
from gradwire_lab.experiments.page import read_all
from gradwire_lab.experiments.papers import EXHIBITS, PAPERS
from gradwire_lab.experiments.papers.reproduce import MEASURED, by_basis
from support.project import ROOT

MACHINE = {"processor": "A (R) Processor", "cores": 2}
FIELDS = {
    "schema": training_speed.EXPERIMENT.schema,
    "machine": MACHINE,
    "versions": {"torch": "2.13", "gradwire": "0.1"},
    "commit": "0123456789abcdef",
    "finished": True,
}
NAME, BLOCK = "gpt-4-hosts", "<!-- measured: gpt-4-hosts -->\n<!-- end of measured -->\n"
ENTRY = """[[table]]
page = "docs/page.md"
head = "codec | ms a step"
kind = "measured elsewhere"
reason = "old"
"""
TABLE = "| codec | ms a step |\n|---|---:|\n| fp8 | 12 |\n| bf16 | 13 |\n"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = _loaded()


def rows(attached_s: float = 20.0) -> list[dict[str, Any]]:
    """Return trainings of three seeds with four methods."""
    times = {"alone": 10.0, "DDP": 40.0, "bf16 hook": 30.0, "attach(model)": attached_s}
    cell = {"hosts": 4, "rate": "1gbit", "task": "gpt", "data": "digits", "plan": "", "accuracies": [0.88]}
    goal = {"chance": 0.1, "known": 0.9, "origin": "a table"}
    return [
        {
            **cell,
            "goal": goal,
            "seed": seed,
            "method": method,
            "step_s": time / 10,
            "curve": [[10, time, 1.0]],
        }
        for seed in range(3)
        for method, time in times.items()
    ]


def keep(root: Path, fields: Mapping[str, Any], machine: str = "2-cores", name: str = NAME) -> Path:
    """Write a record."""
    path = root / "docs" / "measured" / name / machine / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sealed_json(json.loads(json.dumps(fields)))), encoding="utf-8")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project with one page that has one block, and no records."""
    (tmp_path / "docs" / "measured").mkdir(parents=True)
    (tmp_path / "docs" / "measured" / "unrecorded.toml").touch()
    (tmp_path / "docs" / "page.md").write_text(f"# Page\n\n{BLOCK}", encoding="utf-8")
    (tmp_path / "README.md").write_text(BLOCK.replace(NAME, "summary"), encoding="utf-8")
    figures.write(tmp_path)
    return tmp_path


def page_of(root: Path) -> str:
    return (root / "docs" / "page.md").read_text(encoding="utf-8")


def add(root: Path, text: str) -> None:
    (root / "docs" / "page.md").write_text(f"{page_of(root)}\n{text}", encoding="utf-8")


def test_the_documentation_has_no_table_of_figures_without_a_record() -> None:
    assert list(figures.check(ROOT)) == []
    assert len(figures.unrecorded(ROOT)) <= 42, "the list of exemptions only becomes shorter"


def test_what_is_not_measured_yet_says_so_and_is_no_problem(root: Path) -> None:
    assert "*Not measured yet on this code: `python scripts/figures.py measure gpt-4-hosts`.*" in page_of(
        root
    )
    assert list(figures.check(root)) == []


def test_a_record_becomes_a_table_with_its_machine_and_commit(root: Path) -> None:
    keep(root, {**FIELDS, "rows": rows()})
    assert "differs from its records" in next(figures.check(root))
    figures.write(root)
    assert list(figures.check(root)) == []
    page = page_of(root)
    assert "2 cores of A (R) Processor, PyTorch 2.13, gradwire 0.1 at 0123456789" in page
    assert "| method | step, ms | steps, to loss | time, s | accuracy, % | time, over DDP |" in page
    assert "| --- | ---: | ---: | ---: | ---: | --- |" in page
    assert "| attach(model) over bf16 hook | 1.50x (1.50 to 1.50) | 1.50x (1.50 to 1.50) |" in page
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert "| `gradwire.attach(model)` | 2000 ms, 20 s |" in readme
    figures.write(root)
    assert page_of(root) == page, "writing twice changes nothing"


def test_a_chart_is_drawn_from_its_record_and_refused_if_it_was_altered(root: Path) -> None:
    keep(root, {**FIELDS, "rows": rows()})
    figures.write(root)
    chart = root / figures.IMAGES / "training_speed.svg"
    text = chart.read_text(encoding="utf-8")
    assert list(figures.check(root)) == []
    chart.write_text(text.replace("var(--ink)", "var(--paper)", 1), encoding="utf-8")
    assert list(figures.check(root)) == [
        "docs/images/training_speed.svg: differs from its records; run python scripts/figures.py write"
    ]
    assert {path.name for path in chart.parent.iterdir()} == {"training_speed.svg", "codec_steps.svg"}


def test_what_other_programs_took_stands_below_the_machine(root: Path) -> None:
    keep(root, {**FIELDS, "rows": [{**row, "others": 0.01} for row in rows()]})
    figures.write(root)
    said = f"Other programs took 1.0 % of the cores (median of {len(rows())} rows; 1.0 % at most)."
    assert page_of(root).split("**\n\n", 1)[1].startswith(said)


def test_each_machine_has_its_own_table(root: Path) -> None:
    keep(root, {**FIELDS, "rows": rows()})
    keep(root, {**FIELDS, "machine": {**MACHINE, "cores": 16}, "rows": rows(10.0)}, "16-cores")
    figures.write(root)
    assert page_of(root).count("| method |") == 2
    assert "16 cores of" in page_of(root)
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert readme.count("GPT, 43 MB |") == 2, "two tables, since one task has two machines"


def test_the_summary_of_tasks_on_different_machines_is_one_table_that_names_them(root: Path) -> None:
    keep(root, {**FIELDS, "rows": rows()})
    other = {**FIELDS, "machine": {**MACHINE, "cores": 16}, "rows": rows(10.0)}
    keep(root, other, "16-cores", "wide-mlp-4-hosts")
    figures.write(root)
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert "MLP on 16 cores of A (R) Processor; GPT on 2 cores of A (R) Processor:" in readme
    assert "| `gradwire.attach(model)` | 1000 ms, 10 s | 2000 ms, 20 s |" in readme


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda text: text.replace("20.0", "10.0", 1), "was altered after it was written"),
        (lambda text: text.replace('"crc32c"', '"other"'), "has no checksum"),
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (
            lambda text: text.replace(training_speed.EXPERIMENT.schema, "gradwire.experiment-scaling/1"),
            "expected the schema",
        ),
    ],
)
def test_an_altered_record_is_refused(root: Path, changed: Callable[[str], str], reason: str) -> None:
    path = keep(root, {**FIELDS, "rows": rows()})
    path.write_text(changed(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(GradwireError, match=reason):
        list(figures.check(root))


@pytest.mark.parametrize("changed", [{"finished": False}, {"schema": "gradwire.experiment-training-speed/1"}])
def test_an_unfinished_record_and_one_of_older_rows_are_no_measurement(
    root: Path, changed: Mapping[str, object]
) -> None:
    keep(root, {**FIELDS, "rows": rows(), **changed})
    assert list(figures.check(root)) == []


@pytest.mark.parametrize("figure", ["1.50x (1.50 to 1.50)", "2000 ± 0.000"])
def test_an_altered_table_is_refused(root: Path, figure: str) -> None:
    keep(root, {**FIELDS, "rows": rows()})
    figures.write(root)
    page = page_of(root)
    assert figure in page
    (root / "docs" / "page.md").write_text(page.replace(figure, "9.99x", 1), encoding="utf-8")
    assert "gpt-4-hosts differs from its records" in next(figures.check(root))


def test_a_training_that_did_not_learn_leaves_no_figure(root: Path) -> None:
    keep(root, {**FIELDS, "rows": [{**row, "accuracies": [0.12]} for row in rows()]})
    figures.write(root)
    assert "No time, speed, or ratio of gpt counts: did not learn" in page_of(root)
    assert list(figures.figure_tables(page_of(root).replace("measured:", ""))) == []


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (TABLE, 1),
        ("| codec | speed |\n|---|---|\n| fp8 | 1.8x |\n| bf16 | 12 Gbit/s |\n", 1),
        ("| task | sync | none |\n|---|---|---|\n| MNIST | **0.152** (100 %) | 0.144 |\n", 1),
        ("| method | DDP, hook |\n|---|---|\n| step | 48 ms, 15.2 s |\n| other | ~3 s |\n", 1),
        (f"```\n{TABLE}```\n", 0),
        ("| option | meaning |\n|---|---|\n| `--steps` | 12 |\n| `--hosts` | 4 |\n", 0),
        ("| option | meaning |\n|---|---|\n| `--a` | waits at most 30 s for others |\n| `--b` | no |\n", 0),
        ("| bytes | offset |\n|---|---|\n| magic | 4 |\n| version | 2 |\n", 0),
        ("| task | what it is |\n|---|---|\n| a | 784-500-500-10, 2.6 MB |\n| b | layers of 74 MB |\n", 0),
    ],
)
def test_a_table_of_figures_is_known_by_its_cells(root: Path, table: str, found: int) -> None:
    add(root, table)
    problems = list(figures.check(root))
    assert len(problems) == found
    assert all("docs/page.md: no record backs the table of figures" in each for each in problems)


def test_a_listed_table_is_allowed_once_and_the_list_has_no_others(root: Path) -> None:
    listed = root / "docs" / "measured" / "unrecorded.toml"
    listed.write_text(ENTRY, encoding="utf-8")
    assert "has no such table of figures: 'codec | ms a step'; remove the entry" in next(figures.check(root))
    add(root, TABLE)
    assert list(figures.check(root)) == []
    add(root, TABLE)
    assert len(list(figures.check(root))) == 1


@pytest.mark.parametrize(
    ("line", "other"), [('kind = "measured elsewhere"', 'kind = "trust me"'), ('reason = "old"', "")]
)
def test_an_entry_needs_a_kind_and_a_reason(root: Path, line: str, other: str) -> None:
    (root / "docs" / "measured" / "unrecorded.toml").write_text(ENTRY.replace(line, other), encoding="utf-8")
    with pytest.raises(GradwireError, match="expected page, head, kind"):
        list(figures.check(root))


def test_a_block_that_nothing_measures_is_refused(root: Path) -> None:
    add(root, BLOCK.replace(NAME, "dreams"))
    with pytest.raises(GradwireError, match=r"measured: expected one of .*, got 'dreams'"):
        figures.write(root)


def test_papers_verdicts_are_counted_from_their_records(root: Path) -> None:
    name = "study-table-1"
    shutil.copytree(ROOT / figures.REPRODUCED / name, root / figures.REPRODUCED / name)
    text = figures.rendered_verdicts(root)
    judged = read_all(root / figures.REPRODUCED, EXHIBITS)[0].judged
    head, _, *rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    own = [claim for claim in judged.claims if claim.basis is Basis.MEASURED and claim.published is not None]
    counts = Counter(str(claim.verdict) for claim in own)
    assert head[1:] == [str(verdict) for verdict in figures.OF_MEASURED if counts[str(verdict)]]
    assert rows[0] == ["`study`", *(str(counts[verdict]) for verdict in head[1:])]
    assert all(set(row[1:]) <= {"0"} for row in rows[1 : len(PAPERS)])
    rest = [(name, str(count), verdicts) for name, count, verdicts in by_basis([judged])]
    assert [tuple(row) for row in rows[len(PAPERS) + 2 :]] == [row for row in rest if row[0] != MEASURED]
    assert f"`{name}`" not in text
    assert all(f"`{each.name}`" in text for each in EXHIBITS if each.name != name)


def test_every_figure_is_an_experiment_with_options_and_stands_on_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    for words in figures.FIGURES.values():
        experiment, options = figures.experiment_of(words)
        assert experiment.cells(options)
    text = "".join(path.read_text(encoding="utf-8") for path in figures.pages(ROOT))
    named = set(figures.BLOCK.findall(text))
    assert {name for name, _ in named} == {*figures.FIGURES, figures.SUMMARY, figures.VERDICTS}
    assert {*figures.TASKS} <= {*figures.FIGURES}


def test_measuring_keeps_what_is_finished_and_goes_on_with_the_rest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    performed: list[tuple[str, str, bool]] = []

    def perform(
        experiment: Any, _options: Any, folder: Path, *, overwrite: bool, across_commits: bool
    ) -> None:
        assert not across_commits
        performed.append((experiment.name, folder.parent.name, overwrite))

    monkeypatch.setattr(figures, "perform", perform)
    monkeypatch.setattr(figures, "machine_name", lambda: "2-cores")
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    keep(root, {**FIELDS, "rows": rows()})
    figures.measure([NAME, "weight-delta"], root=root)
    assert performed == [("weight-delta", "weight-delta", False)]
    keep(root, {**FIELDS, "finished": False, "rows": rows()[:1]})
    figures.measure([NAME], root=root)
    figures.measure([NAME], overwrite=True, root=root)
    assert performed[1:] == [("training-speed", NAME, False), ("training-speed", NAME, True)]
    with pytest.raises(GradwireError, match=r"expected some of mnist-mlp-4-hosts, .*, got 'gtp'"):
        figures.measure(["gtp"], root=root)


def test_a_machine_is_a_name_of_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"processor": "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", "cores": 2}
    monkeypatch.setattr(figures, "describe_machine", lambda: machine)
    assert figures.machine_name() == "2-cores-intel-xeon-gold-6130-cpu-2-10ghz"


def test_its_exit_code_says_what_make_lint_needs(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "ROOT", root)
    assert figures.main(["check"]) == 0
    add(root, TABLE)
    assert figures.main(["check"]) == 1
    assert figures.main(["write"]) == 1
    assert "no record backs" in capsys.readouterr().err
    assert figures.main(["measure", "gtp"]) == 1
    assert capsys.readouterr().err.startswith("gradwire: expected some of mnist-mlp-4-hosts")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "scripts/figures.py check" in makefile.partition("\nlint:")[2].partition("\n\n")[0]
