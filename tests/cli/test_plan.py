from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.codecs import Codec
from gradwire.plan import Plan
from gradwire.testbed.run.variables import TOPOLOGY
from gradwire.timing.replay.environment import CodecCost
from gradwire.timing.replay.host import HostCost
from gradwire.timing.replay.line import LineRate, Point
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
    monkeypatch.setattr(
        "gradwire.planner.inputs.cluster.measure_host", lambda *_: HostCost(1e-4, 1e-4, cores=4)
    )


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


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("plan", "give --model and --hosts"),
        ("plan --model 5M", "give --hosts"),
        ("plan --model 5M --hosts 0 --rate 1gbit", "from 2 up"),
        ("plan --model 5M --hosts 1 --rate 1gbit", "nothing to exchange"),
        ("plan --model 5M --hosts 257 --rate 1gbit", "--hosts must be 2 to 256"),
        ("plan --model 5M --hosts many --rate 1gbit", "invalid int value: 'many'"),
        ("plan --model 5M --hosts 4", "tell --rate and --latency"),
        ("plan --model 5M --hosts 4 --rate 1gbps", "a rate is written like"),
        ("plan --model 5M --hosts 4 --rate 0gbit", "a rate is written like"),
        ("plan --model 5M --hosts 4 --rate 1gbit --latency 50", "a time is written like"),
        ("plan --model 5M --hosts 4 --measured line.json --rate 1gbit", "leave out --rate"),
        ("plan --model 5M --hosts 4 --measured none.json", "none.json cannot be read"),
        ("plan --model 5M --hosts 4 --measured damaged.json", "damaged.json is no JSON"),
        ("plan --model 5M --hosts 4 --measured other.json", "measured on another machine"),
        ("plan --model 1.5 --hosts 4 --rate 1gbit", "whole number of parameters"),
        ("plan --model resnet --hosts 4 --rate 1gbit", "package.module:name"),
        ("plan --model no_nets:net --hosts 4 --rate 1gbit", "cannot be imported"),
        (f"{BASE} --codecs zip", "no codec is named 'zip'"),
        (f"{BASE} --codecs bf16,bf16", "names bf16 twice"),
        (f"{BASE} --algorithms gossip", "no algorithm is called 'gossip'"),
        (f"{BASE} --pipeline 0", "--pipeline must be 1 to 16"),
        (f"{BASE} --top 0", "--top must be 1"),
        (f"{BASE} --scale-to 1000", "--scale-to must be 0 to 256"),
        (f"{BASE} --largest-error -1", "largest error must be"),
        (f"{BASE} --largest-error nan", "largest error must be"),
        (f"{BASE} --forward 5", "a time is written like"),
        (f"{BASE} --update soon", "a time is written like"),
        (f"{BASE} --gradients none.pt", "none.pt cannot be read"),
        (f"{BASE} --gradients damaged.json", "holds no gradients"),
        (f"{BASE} --group-size 2", "groups need both"),
        (f"{BASE} --group-size 2 --core slow", "a rate is written like"),
        (f"{BASE} --group-size 3 --core 1gbit", "groups have from 2 hosts up to 2"),
        (f"{BASE} --out damaged.json/plan.json", "--out damaged.json/plan.json cannot be written"),
        (f"{BASE} --out folder", "--out folder is a folder"),
        (
            f"{BASE} --out other.json",
            "--out other.json exists already; name another file, or say --overwrite",
        ),
        (f"{BASE} --json other.json", "--json other.json exists already"),
        (f"{BASE} --json a.json --out a.json", "both name a.json"),
        (f"{BASE} --json a.json --out folder/../a.json", "both name folder/../a.json"),
        (f"{BASE} --out=", "name a file"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    reason: str,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it measured")

    monkeypatch.setattr("gradwire.planner.front.measure_codecs", never)
    monkeypatch.setattr("gradwire.planner.inputs.cluster.measure_host", never)
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "folder").mkdir()
    rate = json.loads(LineRate.of([Point(1, 2e-4, 1e3, 1e3)]).to_json()) | {"machine_id": "0" * 16}
    (tmp_path / "other.json").write_text(json.dumps(rate))
    before = sorted(tmp_path.rglob("*"))
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert sorted(tmp_path.rglob("*")) == before
