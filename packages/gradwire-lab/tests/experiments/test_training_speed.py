"""The training-speed experiment: methods, targets that survive an interruption, and its table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.errors import GradwireError
from gradwire.plan import Plan
from gradwire_lab.experiments import methods as runs
from gradwire_lab.experiments import training_speed
from gradwire_lab.experiments.speeds import FIXED
from gradwire_lab.experiments.tasks import TASKS
from gradwire_lab.testbed.registry import KEPT_MEMORY


def words(**given: object) -> argparse.Namespace:
    usual = {"hosts": 2, "rates": "1gbit", "tasks": "gpt", "methods": None, "device": "cpu", "seeds": 1}
    files = dict.fromkeys(["data_dir", "cifar_dir", "text"])
    return argparse.Namespace(**{**usual, **files, **given})


DDP = {"hosts": 2, "rate": "1gbit", "task": "gpt", "seed": 1, "method": "DDP", "curve": [(20, 40.0, 1.0)]}


def test_its_names_are_those_of_the_modules_that_train() -> None:
    planned = dict.fromkeys(runs.PLANNED, Plan())
    assert set(training_speed.TASKS) == set(TASKS)
    assert set(training_speed.METHODS) == set(runs.methods(planned))
    assert runs.__name__ == training_speed.RUNS


def test_methods_are_named_by_parts_and_compared_with_ddp() -> None:
    options = training_speed.EXPERIMENT.read(words(methods="fp8,again", rates="1gbit,100mbit"))
    cells = training_speed.cells(options)
    names = ["alone", "DDP", "fp8 on DDP", "fp8 PipeSGD", "fp8 PipeSGD, stale", "DDP again"]
    assert {*FIXED} <= {*training_speed.METHODS}
    assert [(cell["rate"], cell["method"]) for cell in cells] == [
        (rate, name) for rate in ("1gbit", "100mbit") for name in names
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tasks": "mnist"}, "expected --tasks from mnist-mlp, cifar-cnn, wide-mlp, gpt, got 'mnist'"),
        ({"methods": "fp8,Adam"}, "expected a part of a method's name, got 'Adam'"),
        ({"hosts": 1}, "at least 2 hosts"),
        ({"data_dir": "nowhere"}, "MNIST is incomplete in"),
        ({"cifar_dir": "nowhere"}, "expected a folder for --cifar-dir, got"),
        ({"text": "nowhere"}, "expected a file for --text, got"),
        ({"seeds": 0}, "expected --seeds of at least 1, got 0"),
        ({"device": "tpu"}, "expected --device from cpu, cuda, got 'tpu'"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GradwireError, match=reason):
        training_speed.EXPERIMENT.read(words(**given))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_missing_is_told_before_anything_runs() -> None:
    with pytest.raises(GradwireError, match="expected a GPU that PyTorch sees for --device cuda, got none"):
        training_speed.EXPERIMENT.read(words(device="cuda"))


def test_the_hosts_get_the_loss_that_ddp_reached_before_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    started: list[tuple[list[str], dict[str, object]]] = []

    def measured(
        module: str, cells: Sequence[Mapping[str, Any]], _report: object, more: Any, variables: Any
    ) -> None:
        assert (module, variables) == (training_speed.RUNS, KEPT_MEMORY)
        started.append(([f"{cell['task']} {cell['method']}" for cell in cells], more))

    monkeypatch.setattr(training_speed, "measure_cells", measured)
    text = tmp_path / "text"
    text.touch()
    given = {"text": str(text), "device": "cpu"}
    options = training_speed.EXPERIMENT.read(words(tasks="gpt,wide-mlp", methods="fp16", text=str(text)))
    remaining = [cell for cell in training_speed.cells(options) if cell["task"] != "gpt"]
    remaining = [{**remaining[0], "task": "gpt", "seed": 1, "method": "fp16 hook"}, *remaining]
    training_speed.run(options, remaining, [DDP], lambda _row: None)
    assert started == [
        (["gpt fp16 hook"], {**given, "target": pytest.approx(1.01)}),
        (["wide-mlp alone", "wide-mlp DDP", "wide-mlp fp16 hook"], given),
    ]


def test_images_are_those_of_the_variable_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_speed, "find", lambda _name, folder: folder)
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    assert training_speed.mnist(None) is None
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path / "variable"))
    assert training_speed.mnist(None) == tmp_path / "variable"
    assert training_speed.mnist(str(tmp_path / "named")) == tmp_path / "named"
    (tmp_path / "variable").mkdir()
    assert training_speed.EXPERIMENT.read(words()).images is None, "the variable's folder has none"
    for name in ("variable/cifar10", "named"):
        (tmp_path / name).mkdir(parents=True)
    assert training_speed.EXPERIMENT.read(words()).images == tmp_path / "variable" / "cifar10"
    monkeypatch.chdir(tmp_path)
    assert training_speed.EXPERIMENT.read(words(cifar_dir="named")).images == tmp_path / "named"


def test_without_a_list_methods_are_those_of_the_documentation_once_for_each_seed() -> None:
    cells = training_speed.cells(training_speed.EXPERIMENT.read(words(seeds=3)))
    by_seed = [[cell["method"] for cell in cells if cell["seed"] == seed] for seed in range(3)]
    assert all(sorted(names) == sorted(training_speed.USUAL) for names in by_seed)
    assert all(names[:2] == ["alone", "DDP"] for names in by_seed)
    assert len({names[2] for names in by_seed}) == 3, "no method always comes first"
