"""The training-speed experiment: methods, targets that survive an interruption, and its table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.errors import GradwireError
from gradwire.experiments import training_speed
from gradwire.experiments.training import runs
from gradwire.experiments.training.tasks import TASKS
from gradwire.plan import Plan
from gradwire.tables import Table, lines
from gradwire.testbed.run.variables import KEPT_MEMORY


def words(**given: object) -> argparse.Namespace:
    usual = {"hosts": 2, "rates": "1gbit", "tasks": "gpt", "methods": None, "device": "cpu"}
    files = dict.fromkeys(["data_dir", "images", "text"])
    return argparse.Namespace(**{**usual, **files, **given})


def row(method: str, step_s: float, curve: list[tuple[int, float, float | None]], **more: object) -> Any:
    cell = {"hosts": 2, "rate": "1gbit", "task": "gpt", "method": method}
    return {**cell, "plan": "", "step_s": step_s, "local_s": 0.0, "curve": curve, "blocks": [], **more}


DDP = row("DDP", 2.0, [(10, 20.0, 2.0), (20, 40.0, 1.0)])


def test_its_names_are_those_of_the_modules_that_train() -> None:
    planned = dict.fromkeys(runs.PLANNED, Plan())
    assert set(training_speed.TASKS) == set(TASKS)
    assert set(training_speed.METHODS) == set(runs.methods(planned))
    assert runs.__name__ == training_speed.RUNS


def test_methods_are_named_by_parts_and_compared_with_ddp() -> None:
    options = training_speed.read(words(methods="fp8,again", rates="1gbit,100mbit"))
    cells = training_speed.cells(options)
    names = ["alone", "DDP", "fp8 on DDP", "fp8 PipeSGD", "fp8 PipeSGD, stale", "DDP again"]
    assert [(cell["rate"], cell["method"]) for cell in cells] == [
        (rate, name) for rate in ("1gbit", "100mbit") for name in names
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tasks": "mnist"}, "--tasks must be among mnist-mlp, cifar-cnn, wide-mlp, gpt, but 'mnist' came"),
        ({"methods": "fp8,Adam"}, "no method has 'Adam' in its name"),
        ({"hosts": 1}, "at least 2 hosts"),
        ({"data_dir": "nowhere"}, "MNIST is not complete in"),
        ({"images": "nowhere"}, "--images must name a folder"),
        ({"text": "nowhere"}, "--text must name a file, but"),
        ({"device": "tpu"}, "--device must be among cpu, cuda, but 'tpu' came"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GradwireError, match=reason):
        training_speed.read(words(**given))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_missing_is_told_before_anything_runs() -> None:
    with pytest.raises(GradwireError, match="--device cuda needs a GPU that PyTorch sees, but there is none"):
        training_speed.read(words(device="cuda"))


def test_the_hosts_get_the_loss_that_ddp_reached_before_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, object]]] = []

    def measured(
        module: str, cells: Sequence[Mapping[str, Any]], _report: object, more: Any, variables: Any
    ) -> None:
        assert (module, variables) == (training_speed.RUNS, KEPT_MEMORY)
        started.append(([f"{cell['task']} {cell['method']}" for cell in cells], more))

    monkeypatch.setattr(training_speed, "measure_cells", measured)
    text = tmp_path / "text"
    text.touch()
    options = training_speed.read(words(tasks="gpt,wide-mlp", methods="fp16", text=str(text)))
    remaining = [cell for cell in training_speed.cells(options) if cell["task"] != "gpt"]
    remaining = [{**remaining[0], "task": "gpt", "method": "fp16 hook"}, *remaining]
    training_speed.run(options, remaining, [DDP], lambda _row: None)
    assert started == [
        (["gpt fp16 hook"], {"text": str(text), "device": "cpu", "target": pytest.approx(1.01)}),
        (["wide-mlp alone", "wide-mlp DDP", "wide-mlp fp16 hook"], {"text": str(text), "device": "cpu"}),
    ]


def test_its_table_compares_steps_and_times_to_the_loss() -> None:
    rows = [
        row("alone", 0.5, [(10, 5.0, 3.0)]),
        DDP,
        row("fp8 on DDP", 1.0, [(10, 10.0, 1.51), (20, 20.0, 0.51)], plan="fp8 ring"),
        row("fp8 PipeSGD", 0.8, [(10, 8.0, 1.2), (20, 16.0, None)], local_s=0.01),
        row("DDP again", 2.0, [(10, 20.0, 2.0)]),
    ]
    title, _, table, _, _ = training_speed.table(rows)
    assert title == (
        "gpt, 2 hosts at 1gbit: communication takes 75% of DDP's step; the loss to reach is 1.0100"
    )
    assert isinstance(table, Table)
    reached_s = 20 + 20 * 0.99  # DDP, between its evaluations
    assert [list(each) for each in table.rows] == [
        ["alone", "500", "4.00x", "", "", "", ""],
        ["DDP", "2000", "1.00x", "", "20", f"{reached_s:.3g}", "1.00x"],
        ["fp8 on DDP: fp8 ring", "1000", "2.00x", "", "15", "15", f"{reached_s / 15:.2f}x"],
        ["fp8 PipeSGD", "800", "2.50x", "10", "-", "", ""],
        ["DDP again", "2000", "1.00x", "", "", "", ""],
    ]
    assert max(map(len, lines(*training_speed.table(rows)))) <= 80
