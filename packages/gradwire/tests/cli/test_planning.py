from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from gradwire.cli import main
from gradwire.codecs import Codec
from gradwire.machine import TOPOLOGY
from gradwire.plan import Plan
from gradwire.timing.environment import CodecCost
from gradwire.timing.line import HostCost, LineRate, Point
from support.planner_costs import made_up

BASE = "plan --model 300k --hosts 3 --rate 10mbit"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOPOLOGY, raising=False)


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(codecs: Sequence[Codec], *_: object) -> dict[str, CodecCost]:
        return {str(codec): made_up(codec) for codec in codecs}

    monkeypatch.setattr("gradwire.planner.front.measure_codecs", costs)
    monkeypatch.setattr("gradwire.planner.cluster.measure_host", lambda *_: HostCost(1e-4, 1e-4, cores=4))


@pytest.mark.usefixtures("no_measuring")
def test_it_says_what_it_knows_ranks_chooses_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{BASE} --forward 20ms --backward 40ms --scale-to 4 --top 3 --json all.json --out new/plan.json"
    assert main(words.split()) == 0
    printed = capsys.readouterr().out
    for told in (
        "300,000 parameters, 1.2MB (told)",
        "10mbit (told)",
        "50us (assumed)",
        "synthetic (Laplace) (assumed)",
        "60ms a step (told)",
        "codec",
        "quantize:8 over ring: a step of",
        "efficiency",
        "wrote new/plan.json",
    ):
        assert told in printed, told
    assert max(map(len, printed.splitlines())) <= 80
    plan = Plan.load("new/plan.json")
    values = json.loads(Path("all.json").read_text())
    assert str(plan.codec) == "quantize:8"
    assert Plan.from_json(json.dumps(values["plan"])) == plan
    assert [each["hosts"] for each in values["scaling"]] == [1, 2, 3, 4]


@pytest.mark.usefixtures("no_measuring")
def test_no_compression_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --model 300k --hosts 3 --rate unlimited --latency 0 --scale-to 0 --out plan.json"
    assert main(words.split()) == 0
    assert "no compression: identity over backend" in capsys.readouterr().out
    assert str(Plan.load("plan.json").codec) == "identity"


@pytest.mark.usefixtures("no_measuring")
def test_a_budget_that_only_identity_meets_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"{BASE} --codecs bf16,quantize:8 --largest-error 0".split()) == 0
    printed = capsys.readouterr().out
    assert "no compression" in printed
    assert "beyond the largest error of 0: bf16" in printed


@pytest.mark.usefixtures("no_measuring")
def test_a_measured_line_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point(1, 2e-4, 1e3, 1e3), Point(1 << 22, 3.4, 1.25e6, 1.25e6)]
    Path("line.json").write_text(LineRate.of(points).to_json())
    assert (
        main(["plan", "--model", "300k", "--hosts", "2", "--measured", "line.json", "--scale-to", "0"]) == 0
    )
    assert "10mbit, 200us (measured, line.json)" in capsys.readouterr().out


def test_recorded_gradients_make_the_loss_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save([torch.randn(70_000, generator=torch.Generator().manual_seed(k)) for k in range(3)], "g.pt")
    words = "plan --model 70k --hosts 2 --rate 10mbit --codecs quantize:8 --scale-to 0 --gradients g.pt"
    for more, has_loss in (("", True), (" --objective step", False)):
        assert main((words + more).split()) == 0
        printed = capsys.readouterr().out
        assert ("noise scale" in printed) == ("to loss" in printed) == has_loss


def test_a_factory_is_measured_with_its_own_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nets.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Linear(300, 200), (torch.ones(8, 300),)\n"
    )
    words = "plan --model nets:net --hosts 2 --rate 1mbit --codecs quantize:8 --scale-to 0 --shared-machine"
    assert main(words.split()) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for told in (
        "60,200 parameters",
        "(forward and backward measured here)",
        "5 recorded (measured)",
        "hosts share",
        "quantize:8",
    ):
        assert told in printed, told
