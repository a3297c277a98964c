"""The experiment: what it trains where, its mistakes, and its table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import GradwireError
from gradwire.tables import Table, lines
from gradwire_lab.experiments import auto, hosts
from gradwire_lab.experiments.experiment import Reporter
from gradwire_lab.testbed.registry import KEPT_MEMORY


def words(**given: object) -> argparse.Namespace:
    usual: dict[str, object] = {"hosts": 4, "rate": "100mbit", "tasks": "gpt", "methods": "auto", "seeds": 2}
    fixed = {"codecs": None, "algorithms": "ring"}
    return argparse.Namespace(**{**usual, **fixed, "data_dir": None, "text": None, **given})


def test_what_compresses_nothing_trains_without_a_limit_and_first() -> None:
    cells = auto.cells(auto.EXPERIMENT.read(words(methods="auto,bf16 hook")))
    assert [(cell["rate"], cell["method"], cell["seed"]) for cell in cells] == [
        *(("unlimited", method, seed) for method in ("DDP", "bf16 hook") for seed in (1, 2)),
        *(("100mbit", "auto", seed) for seed in (1, 2)),
    ]


def test_each_codec_goes_over_each_algorithm_as_a_fixed_plan() -> None:
    options = auto.EXPERIMENT.read(words(codecs="fp8,ecsq:0.25,foot", algorithms="ring,pairwise", seeds=1))
    assert [cell["method"] for cell in auto.cells(options)] == [
        "DDP",
        "auto",
        *("fp8 over ring", "fp8 over pairwise", "ecsq:0.25,foot over ring", "ecsq:0.25,foot over pairwise"),
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tasks": "mnist"}, "expected --tasks from mlp, cnn, .*, got 'mnist'"),
        ({"methods": "fp9"}, "expected --methods from DDP, .*, got 'fp9'"),
        ({"codecs": "fp9"}, "fp9"),
        ({"codecs": "fp8", "algorithms": "rong"}, "rong"),
        ({"seeds": 0}, "expected --seeds of at least 1, got 0"),
        ({"hosts": 1}, "at least 2 hosts"),
        ({"rate": "fast"}, "fast"),
        ({"data_dir": "nowhere"}, "expected a folder for --data-dir"),
        ({"text": "nowhere"}, "expected a file for --text"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GradwireError, match=reason):
        auto.EXPERIMENT.read(words(**given))


def test_the_hosts_get_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.touch()
    started: list[tuple[str, int, Any, Any]] = []

    def measured(
        module: str, cells: Sequence[Mapping[str, Any]], _report: object, more: Any, variables: Any
    ) -> None:
        started.append((module, len(cells), more, variables))

    monkeypatch.setattr(hosts, "measure_cells", measured)
    options = auto.EXPERIMENT.read(words(text=str(text), data_dir=str(tmp_path)))
    auto.EXPERIMENT.run(options, auto.cells(options), (), Reporter(lambda _row: None, lambda _text: None))
    files = {"text": str(text), "data_dir": str(tmp_path)}
    assert started == [(auto.RUNS, 4, files, KEPT_MEMORY)]


def test_its_table_compares_each_seed_with_ddp_s() -> None:
    losses = {
        "DDP": (2.0, 1.0),
        "auto": (2.02, 0.99),
        "fp8 over ring": (2.0, 1.0),
        "bf16 over star": (2.0, 1.0),
    }
    later_s = {"DDP": 0.4, "auto": 0.2, "fp8 over ring": 0.18, "bf16 over star": 0.3}
    more = {"ratio": 8.0, "later_ratio": 9.0, "plan": "ecsq:0.25 ring"}
    sent = {1: {"raw_nbytes": 16_000, "wire_nbytes": 2_000}, 2: {"raw_nbytes": 2_900, "wire_nbytes": 100}}
    rows: list[dict[str, Any]] = [
        {"task": "gpt", "method": method, "seed": seed, "loss": loss, "step_s": 0.5}
        | {"later_s": later_s[method]}
        | (more | sent[seed] if method != "DDP" else {})
        for method, found in losses.items()
        for seed, loss in enumerate(found, 1)
    ]
    table, _, summary, _, speed, *_ = auto.table(rows)
    assert isinstance(table, Table)
    assert [list(each) for each in table.rows[:2]] == [
        ["gpt", "DDP", "1.5000", "", "", "500", "400", ""],
        ["gpt", "auto", "1.5050", "+0.00 (-1.00 to +1.00)", "8.0x (9.0x)", "500", "200", "ecsq:0.25 ring"],
    ]
    assert "0.90 times as fast as with each task's fastest fixed plan" in str(speed)
    assert not any("fixed plan" in str(part) for part in auto.table(rows[:4]))
    assert "9.0 times fewer bytes over all tasks together, 8.0 times on average over the tasks" in str(
        summary
    )
    assert "over the tasks, and 9.0 times in the second half" in str(summary)
    fewer = [{**row, "loss": row["loss"] * (0.95 if row["method"] == "auto" else 1)} for row in rows]
    assert "differs from DDP's by at most 5.00 %, and by -5.00 % on average" in str(auto.table(fewer)[2])
    assert max(map(len, lines(*auto.table(rows)))) <= 80
