"""The gain experiment: its cells, predictions from made-up costs, and the answers in its tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.checkpoints import sealed_json
from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.planner import PlanRequest, calibration
from gradwire.tables import lines
from gradwire.timing.environment import CodecCost
from gradwire.timing.line import HostCost
from gradwire_lab.experiments import gain
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.experiments.gain import GainOptions, Model
from gradwire_lab.experiments.tasks import TASKS, Files
from gradwire_lab.experiments.training_speed import EXPERIMENT as TRAINING_SPEED
from support.planner_costs import codec_cost

NBYTES = {"identity": 4.0, "bf16": 2.0, "fp8": 1.004, "ecsq:0.25": 0.5, "ecsq:0.5": 0.38}
MODEL = Model(2_000_000, 0.01)


def values(host: HostCost | None = None) -> dict[str, Any]:
    """Return a request with made-up costs, as a calibration has it."""
    costs = {spec: codec_cost(spec, nbytes) for spec, nbytes in NBYTES.items()}
    request = PlanRequest.of(
        10**9, 16, rate="1gbit", latency="50us", codecs=list(NBYTES)[1:], host=host or HostCost(), costs=costs
    )
    found: dict[str, Any] = json.loads(json.dumps(replace(request, shared_machine=False).to_values()))
    return found


def prediction(**changed: Any) -> Row:
    usual = {"part": "prediction", "model": "GPT-2", "rate": "1gbit", "hosts": 4, "compute_s": 0.3}
    times = {"ddp_s": 4.0, "hook_s": 2.0, "step_s": 1.0, "codec": "fp8", "uncertainty": 0.03}
    return {**usual, **times, **changed}


def test_a_slow_network_gains_and_a_fast_one_does_not() -> None:
    slow = gain.predicted(values(), MODEL, {"hosts": 4, "rate": "100mbit"})
    assert slow["codec"] == "ecsq:0.25", "the fewest bytes, where a byte costs most"
    assert slow["step_s"] < slow["hook_s"] < slow["ddp_s"]
    bits = 2 * 3 / 4 * 32 * MODEL.count  # of a ring, from each of four hosts
    assert slow["ddp_s"] == pytest.approx(bits / 1e8, rel=0.1)
    assert slow["hook_s"] == pytest.approx(bits / 2e8, rel=0.1)
    fast = gain.predicted(values(), MODEL, {"hosts": 4, "rate": "1000gbit"})
    assert fast["codec"] == "identity"
    assert gain.answer({**prediction(), **fast}) == gain.KEEP_DDP


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "4.0x (2.0x)"),
        ({"step_s": 1.95}, "bf16 hook, 2.0x"),
        ({"step_s": 1.9}, "2.1x (1.1x)"),
        ({"step_s": 1.9, "uncertainty": 0.1}, "bf16 hook, 2.0x"),
        ({"codec": "identity"}, "bf16 hook, 2.0x"),
        ({"hook_s": 3.95, "step_s": 3.9}, "don't compress"),
        ({"hook_s": 4.5, "step_s": 3.9}, "don't compress"),
    ],
)
def test_differences_within_the_uncertainty_are_no_gain(changed: dict[str, Any], said: str) -> None:
    assert gain.answer(prediction(**changed)) == said


def test_every_model_has_a_table_with_a_row_for_each_rate() -> None:
    rows = [prediction(hosts=hosts, rate=rate) for rate in ("1gbit", "10gbit") for hosts in (2, 4)]
    calibration = {"part": "calibration", "threads": 1, "request": values()}
    check = {
        "part": "check",
        "task": "gpt",
        "hosts": 4,
        "method": "DDP",
        "measured_s": 2.0,
        "predicted_s": 1.9,
    }
    printed = "\n".join(lines(*gain.table([calibration, *rows, check])))
    assert "GPT-2, 124 million parameters, 300ms of computation in a step:" in printed
    assert printed.count("4.0x (2.0x)") == 4
    assert "the median error is 5 %, the largest 5 %" in " ".join(printed.split())
    assert "-5" in printed
    assert "fp8" in printed


def recorded(path: Path, name: str = "mnist-mlp", data: str = "mnist", device: str = "cpu") -> None:
    """Write a record of training-speed with one run of five methods."""
    cell = {"task": name, "hosts": 2, "rate": "1gbit", "seed": 0, "data": data}
    steps_s = {"alone": 0.003, "DDP": 0.03, "bf16 hook": 0.02, "fp8 on DDP": 0.01, "PowerSGD 1": 0.01}
    rows = [{**cell, "method": method, "step_s": step_s} for method, step_s in steps_s.items()]
    record = {
        "schema": TRAINING_SPEED.schema,
        "options": {"device": device},
        "finished": True,
        "measured_s": 1.0,
        "rows": rows,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(sealed_json(record)), encoding="utf-8")


def test_records_of_training_speed_are_predicted_too(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "record.json").write_text('{"schema": "another"}', encoding="utf-8")
    recorded(tmp_path / "gpu" / "record.json", device="cuda")
    recorded(tmp_path / "record.json")
    options = GainOptions(models=("GPT-2",), rates=("1gbit",), hosts=(2,), against=tmp_path)
    first, second, *checks = gain.cells(options)
    assert (first["part"], second["part"]) == ("calibration", "prediction")
    assert [check["method"] for check in checks] == ["DDP", "bf16 hook", "fp8 on DDP"]
    found: list[Row] = []
    gain.run(options, checks, [{**first, "request": values()}], found.append)
    ddp_s, hook_s, fp8_s = (row["predicted_s"] for row in found)
    assert ddp_s > hook_s > fp8_s > 0.003


@pytest.mark.parametrize("name", TASKS)
def test_a_measured_step_is_predicted_with_the_parameters_for_its_data(tmp_path: Path, name: str) -> None:
    task = TASKS[name](0, 2, Files())
    recorded(tmp_path / "record.json", name, task.data)
    cells = gain.cells(GainOptions(against=tmp_path))
    cell = next(each for each in cells if each.get("method") == "DDP")
    model = Model(sum(each.numel() for each in task.model.parameters()), cell["compute_s"])
    expected = gain.predicted({**values(), "shared_machine": True}, model, cell)
    assert gain.predicted_step_s(values(), cell) == expected["ddp_s"]


@pytest.mark.parametrize(("content", "reason"), [("{", "got invalid JSON"), ("[]", "got a list")])
def test_a_damaged_record_is_one_sentence(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "record.json").write_text(content)
    options = GainOptions(against=tmp_path)
    with pytest.raises(SpecError, match=rf"expected a JSON object for .*record\.json, {reason}"):
        gain.cells(options)


def test_a_calibration_keeps_the_shortest_times_of_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = iter([2e-9, 1e-9, 3e-9, 2e-9, 2e-9])

    def measured(codecs: Any, _samples: Any, world: int, threads: int, _line: Any) -> dict[str, CodecCost]:
        assert (world, threads) == (4, 1)
        costs = {str(codec): codec_cost(str(codec), 1.0) for codec in codecs}
        encode_s = next(passes)
        return {
            spec: replace(cost, points=(replace(cost.points[0], encode_s=encode_s),))
            for spec, cost in costs.items()
        }

    monkeypatch.setattr(calibration, "measure_codecs", measured)
    monkeypatch.setattr(calibration, "measure_host", lambda _cores, _ranks: HostCost(send_s=1e-4))
    monkeypatch.setattr(calibration, "synthetic_gradients", lambda _count: [])
    request = PlanRequest.from_values(json.loads(json.dumps(gain.calibrated(4))))
    assert request.host == HostCost(send_s=1e-4)
    assert request.costs is not None
    assert {*request.costs} == {"identity", *gain.CODECS, "ecsq:0.5"}
    assert {cost.points[0].encode_s for cost in request.costs.values()} == {1e-9}


def test_the_least_of_each_cost_counts() -> None:
    fast, slow = (codec_cost("fp8", 1.004) for _ in range(2))
    slow = replace(slow, points=(replace(slow.points[0], encode_s=5e-9),), call_s=1e-6)
    least = gain._least([slow, fast])
    assert least.points[0].encode_s == fast.points[0].encode_s
    assert (least.call_s, least.codec) == (1e-6, "fp8")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"models": ("LLaMA",)}, "expected --models from ResNet-50, GPT-2, 1B, got 'LLaMA'"),
        ({"hosts": (1,)}, "expected --hosts of at least 2, got 1"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        GainOptions(**given)


def test_its_codecs_exist() -> None:
    assert [str(parse(spec)) for spec in gain.CODECS] == list(gain.CODECS)
    assert {*gain.PLANS} <= {"fp8 on DDP", "ecsq:0.5 on DDP", "quantize:4 on DDP"}
