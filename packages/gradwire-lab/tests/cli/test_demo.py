"""``gradwire demo``: a short one on a real testbed, and what it does where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire import errors
from gradwire.cli import main
from gradwire_lab.cli import demo, train
from gradwire_lab.job.options import JobOptions
from support.beds import needs_namespaces

SHORT = ["--epochs", "1", "--max-steps", "4", "--evaluate-every", "1"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "LENGTH", SHORT)
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.processes
@needs_namespaces
def test_ddp_its_hook_and_gradwire_train_on_a_testbed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "HOSTS", 2)  # each is an interpreter that imports torch
    assert main(["demo", "--out", "out", "--rate", "1gbit"]) == 0
    printed = capfd.readouterr()
    assert "digits, wide: 2 workers, testbed links of 1gbit, 4 steps" in printed.out
    assert "gradwire plan --model 25.6M --hosts 2 --rate 1gbit\n" in printed.out
    assert "h0 |" not in printed.out + printed.err
    record = json.loads(Path("out/record.json").read_text())
    assert [run["run"] for run in record["runs"]] == [
        "ddp:identity",
        "bf16-hook:identity",
        "attach:auto",
        "pipe:auto",
    ]
    assert record["equal_loss"]["baseline"] == "ddp:identity"
    assert Path("out/training.png").stat().st_size > 10_000
    assert printed.out.endswith("record and plot are in out\nthe page is out/report.html\n")
    assert "time to the same loss than DDP" in Path("out/report.html").read_text()


def test_without_a_testbed_it_says_so_and_compares_what_can_be_paced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_bed: object) -> None:
        raise errors.TestbedError("a testbed needs network namespaces, which this machine refuses")

    performed: list[JobOptions] = []
    monkeypatch.setattr("gradwire_lab.testbed.bed.Testbed.__enter__", refused)
    monkeypatch.setattr("gradwire_lab.job.job.perform_job", performed.append)
    assert main(["demo", "--rate", "500mbit", "--out", "out"]) == 0
    assert capsys.readouterr().out == (
        "a testbed needs network namespaces, which this machine refuses. Without a testbed, DDP's own "
        "traffic cannot be throttled: D-Sync over throttled links, uncompressed and with bf16, replaces it.\n"
    )
    (options,) = performed
    assert [str(run) for run in options.runs] == ["sync:identity", "sync:bf16", "sync:fp8", "pipe:fp8"]
    assert (options.link, options.workers, options.model) == ("500mbit", 4, "wide")


def test_its_own_length_gives_enough_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    options = train.read([*demo.MODEL, *demo.LENGTH, "--out", "out"])
    assert options.max_steps is not None
    assert options.evaluate_every is not None
    assert options.max_steps // options.evaluate_every >= 8
    assert options.epochs * (1438 // options.batch) >= options.max_steps


def test_a_host_that_fails_ends_it_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failed:
        failure, exit_code = "h2 ended with exit code 2", 2

    class Bed:
        def __init__(self, _topology: object) -> None: ...

        def __enter__(self) -> Bed:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, *_: object, **__: object) -> type[Failed]:
            return Failed

    monkeypatch.setattr(demo, "Testbed", Bed)
    assert main(["demo", "--out", "out"]) == 2
    assert capsys.readouterr().err == "gradwire: h2 ended with exit code 2\n"
