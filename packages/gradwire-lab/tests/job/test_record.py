import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.codecs import Identity, parse
from gradwire.plan import Plan
from gradwire.records import to_json
from gradwire_lab.job.options import JobOptions
from gradwire_lab.job.record import SCHEMA, RunResult, job_record, read_results


def test_the_record_says_what_ran_where_and_how(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    record = json.loads(to_json(job_record(options, results)))
    assert record["schema"] == SCHEMA
    assert record["machine"].keys() == {"system", "kernel", "processor", "cores", "target"}
    assert record["versions"].keys() == {"gradwire", "python", "torch", "numpy"}
    assert record["options"]["runs"] == [
        "server:identity",
        "sync:identity",
        "sync:quantize:8",
        "pipe:quantize:8",
    ]
    assert record["options"]["link"] == "100mbit"
    last = record["runs"][3]
    assert last["label"] == "Pipe-SGD + quantize:8"
    assert last["train_s"] == pytest.approx(30 * 0.05)
    assert last["step_s"] == pytest.approx(0.05)
    assert last["ratio"] == 4.0
    assert last["speed_up_over_ps_sync"] == pytest.approx(16)
    assert last["speed_up_over_d_sync"] == pytest.approx(4)
    assert [epoch["accuracy"] for epoch in last["epochs"]] == [0.5, 0.75, 0.875]
    assert last["accuracy"] == 0.875


def test_without_a_baseline_there_is_no_speed_up(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    runs = job_record(options, results[2:])["runs"]
    assert isinstance(runs, list)
    assert runs[0]["speed_up_over_ps_sync"] is None


def test_a_diverged_loss_is_null(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    epoch = replace(results[0].epochs[0], loss=math.nan)
    record = json.loads(to_json(job_record(options, (replace(results[0], epochs=(epoch,)),))))
    assert record["runs"][0]["epochs"][0]["loss"] is None
    assert record["runs"][0]["diverged"] is True
    described = job_record(options, results)["runs"]
    assert isinstance(described, list)
    assert [run["diverged"] for run in described] == [False] * 4


def test_the_times_to_equal_loss_are_kept(options: JobOptions, on_ddp: tuple[RunResult, ...]) -> None:
    record = json.loads(to_json(job_record(options, on_ddp)))
    assert record["equal_loss"]["baseline"] == "ddp:identity"
    assert record["equal_loss"]["held_out_loss"] == 0.5
    assert record["equal_loss"]["reached"]["pipe:fp8"] == {"steps": 20, "train_s": pytest.approx(1.6)}
    assert [run["plan"] is None for run in record["runs"]] == [True, True, False, False]
    assert record["runs"][0]["epochs"][1]["held_out_loss"] == 0.5
    assert job_record(options, on_ddp[1:])["equal_loss"] is None


def test_every_run_keeps_the_plan_that_it_followed(
    options: JobOptions, results: tuple[RunResult, ...]
) -> None:
    sizes = replace(options, exchange=Plan(Identity(), "ring", 1 << 20, 3, 25_000_000, residual=True))
    runs = json.loads(to_json(job_record(sizes, results)))["runs"]
    server, _, sync, pipe = (Plan.from_json(json.dumps(run["plan"])) for run in runs)
    assert server == Plan(Identity(), "star", 1 << 20, residual=True)
    assert sync == Plan(parse("quantize:8"), "ring", 1 << 20, 1, 25_000_000, residual=True)
    assert pipe == Plan(parse("quantize:8"), "ring", 1 << 20, 3, 25_000_000, residual=True)


def test_the_data_folder_is_kept_without_its_path(
    options: JobOptions, results: tuple[RunResult, ...]
) -> None:
    text = to_json(job_record(replace(options, data_folder=Path("/home/somebody/mnist")), results))
    assert "somebody" not in text


def test_the_results_are_read_again(options: JobOptions, on_ddp: tuple[RunResult, ...]) -> None:
    chosen = replace(on_ddp[3], decided=((4, "fp8 over ring"),))
    results = (*on_ddp[:3], chosen)
    assert read_results(json.loads(to_json(job_record(options, results)))) == results
    lost = replace(chosen, epochs=(*chosen.epochs[:2], replace(chosen.epochs[2], held_out_loss=math.nan)))
    (found,) = read_results(json.loads(to_json(job_record(options, (lost,)))))
    assert found.diverged
    assert found.epochs[:2] == chosen.epochs[:2]
