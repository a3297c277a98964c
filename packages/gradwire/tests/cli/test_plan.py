from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from gradwire.cli import main
from gradwire.cli.plan import parser, read_request
from gradwire.codecs import Codec
from gradwire.machine import TOPOLOGY
from gradwire.plan import Plan
from gradwire.planner.request import PlanRequest
from gradwire.timing.environment import CodecCost
from gradwire.timing.line import HostCost, LineRate, Point
from support.planner_costs import made_up

BASE = "plan --model 300k --hosts 3 --rate 10mbit"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOPOLOGY, raising=False)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("plan", "got no --model and no --hosts"),
        ("plan --model 5M", "got no --hosts"),
        ("plan --model 5M --hosts 0 --rate 1gbit", "expected at least 2 hosts"),
        ("plan --model 5M --hosts 1 --rate 1gbit", "expected at least 2 hosts"),
        ("plan --model 5M --hosts 257 --rate 1gbit", "expected 2 to 256 for --hosts, got 257"),
        ("plan --model 5M --hosts many --rate 1gbit", "expected a whole number, got 'many'"),
        ("plan --model 5M --hosts 4", "pass --rate and --latency"),
        ("plan --model 5M --hosts 4 --rate 1gbps", "expected a rate such as"),
        ("plan --model 5M --hosts 4 --rate 0gbit", "expected a rate such as"),
        ("plan --model 5M --hosts 4 --rate 1gbit --latency 50", "expected a time such as"),
        ("plan --model 5M --hosts 4 --measured line.json --rate 1gbit", "omit --rate"),
        ("plan --model 5M --hosts 4 --measured none.json", "none.json cannot be read"),
        ("plan --model 5M --hosts 4 --measured damaged.json", "damaged.json is not valid JSON"),
        ("plan --model 5M --hosts 4 --measured other.json", "measured on another machine"),
        ("plan --model 1.5 --hosts 4 --rate 1gbit", "whole number of parameters"),
        ("plan --model resnet --hosts 4 --rate 1gbit", "package.module:name"),
        ("plan --model no_nets:net --hosts 4 --rate 1gbit", "cannot be imported"),
        (f"{BASE} --codecs zip", "unknown codec 'zip'"),
        (f"{BASE} --codecs bf16,bf16", "got bf16 twice"),
        (f"{BASE} --algorithms gossip", "unknown algorithm 'gossip'"),
        (f"{BASE} --pipeline 0", "expected 1 to 16 for --pipeline, got 0"),
        (f"{BASE} --top 0", "expected 1 to 1000 for --top, got 0"),
        (f"{BASE} --scale-to 1000", "expected 0 to 256 for --scale-to, got 1000"),
        (f"{BASE} --largest-error -1", "of at least 0 for the largest error"),
        (f"{BASE} --largest-error nan", "of at least 0 for the largest error"),
        (f"{BASE} --forward 5", "expected a time such as"),
        (f"{BASE} --update soon", "expected a time such as"),
        (f"{BASE} --gradients none.pt", "none.pt cannot be read"),
        (f"{BASE} --gradients damaged.json", "got a file that torch.load cannot read"),
        (f"{BASE} --group-size 2", "expected both group_size and core_rate"),
        (f"{BASE} --group-size 2 --core slow", "expected a rate such as"),
        (f"{BASE} --group-size 3 --core 1gbit", "expected groups of 2 to 2 hosts"),
        (f"{BASE} --save damaged.json/plan.json", "--save damaged.json/plan.json cannot be written"),
        (f"{BASE} --save folder", "--save folder is a folder"),
        (
            f"{BASE} --save other.json",
            "--save other.json already exists; pass another file, or --overwrite",
        ),
        (f"{BASE} --json other.json", "--json other.json already exists"),
        (f"{BASE} --json a.json --save a.json", "expected two files for --json and --save, got a.json twice"),
        (f"{BASE} --json a.json --save folder/../a.json", "got folder/../a.json twice"),
        (f"{BASE} --json a.json --save a.html", "two files for the page of --json and --save, got a.html"),
        (f"{BASE} --save=", "name a file"),
        (f"{BASE} --save -", "expected a file, got '-', which only --json accepts; name one"),
        (f"{BASE} --objective loss", "expected recorded gradients for the objective 'loss'"),
        (f"{BASE} --nic quantize:8", "expected a codec that NICs can apply"),
        (f"{BASE} --scale auto", "scale: expected a codec with an absolute bound"),
        (f"{BASE} --sharded 0", "expected a learning rate above 0 for sharded training"),
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

    monkeypatch.setattr("gradwire.planner.environment.measure_codecs", never)
    monkeypatch.setattr("gradwire.planner.environment.measure_host", never)
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


TOLD = {"model": 300_000, "hosts": 3, "rate": "10mbit", "most_hosts": 64}


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("", {}),
        ("--model 25.6M", {"model": 25_600_000}),
        ("--model nets:net", {"model": "nets:net"}),
        ("--hosts 256", {"hosts": 256}),
        ("--forward 20ms", {"forward_s": 0.02}),
        ("--backward 40ms", {"backward_s": 0.04}),
        ("--update 3us", {"update_s": 3e-6}),
        (
            "--forward 20ms --backward 40ms --scale-to 4",
            {"forward_s": 0.02, "backward_s": 0.04, "most_hosts": 4},
        ),
        ("--gradients g.pt", {"gradients": Path("g.pt")}),
        ("--elsewhere", {"elsewhere": True}),
        ("--rate unlimited --latency 0", {"rate": "unlimited", "latency": "0"}),
        ("--latency 50us", {"latency": "50us"}),
        ("--group-size 2 --core 1gbit", {"group_size": 2, "core_rate": "1gbit"}),
        ("--shared-machine", {"shared_machine": True}),
        ("--codecs bf16,quantize:8", {"codecs": ["bf16", "quantize:8"]}),
        ("--codecs quantize:8,block=256,fp16", {"codecs": ["quantize:8,block=256", "fp16"]}),
        ("--largest-error 0", {"largest_error": 0.0}),
        ("--largest-error 1e-3", {"largest_error": 1e-3}),
        ("--algorithms ring", {"algorithms": ["ring"]}),
        ("--algorithms star,hierarchical:2,ring+star", {"algorithms": ["star", "hierarchical:2,ring+star"]}),
        ("--pipeline 1", {"pipelines": [1]}),
        ("--pipeline 2", {"pipelines": [1, 2]}),
        ("--objective step", {"objective": "step"}),
        ("--objective loss --gradients g.pt", {"objective": "loss", "gradients": Path("g.pt")}),
        ("--codecs errbound:2^-8 --scale auto", {"codecs": ["errbound:2^-8"], "scale": "auto"}),
        ("--nic inceptionn:2^-10", {"nic": "inceptionn:2^-10"}),
        ("--sharded 1e-3", {"sharded_lr": 1e-3}),
        ("--scale-to 0", {"most_hosts": 0}),
        ("--top 3 --json a.json --save b.json --overwrite", {}),
        (
            "--model 70k --hosts 2 --rate 1gbit --scale-to 8",
            {"model": 70_000, "hosts": 2, "rate": "1gbit", "most_hosts": 8},
        ),
    ],
)
def test_words_and_python_make_the_same_request(words: str, fields: dict[str, object]) -> None:
    request = read_request(parser().parse_args(f"{BASE} {words}".split()[1:]))
    assert request == PlanRequest.of(**TOLD | fields)  # type: ignore[arg-type]
    assert PlanRequest.from_values(json.loads(json.dumps(request.to_values()))) == request


def test_a_measured_line_makes_the_same_request() -> None:
    words = ["--model", "300k", "--hosts", "3", "--measured", "line.json", "--scale-to", "0"]
    assert read_request(parser().parse_args(words)) == PlanRequest.of(300_000, 3, line="line.json")


def test_the_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 46


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(codecs: Sequence[Codec], *_: object) -> dict[str, CodecCost]:
        return {str(codec): made_up(codec) for codec in codecs}

    monkeypatch.setattr("gradwire.planner.environment.measure_codecs", costs)
    monkeypatch.setattr("gradwire.planner.environment.measure_host", lambda *_: HostCost(1e-4, 1e-4, cores=4))


@pytest.mark.usefixtures("no_measuring")
def test_it_says_what_it_knows_ranks_chooses_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{BASE} --forward 20ms --backward 40ms --scale-to 4 --top 3 --json all.json --save new/plan.json"
    assert main(words.split()) == 0
    printed = capsys.readouterr().out
    for told in (
        "300,000 parameters, 1.2MB (given)",
        "10mbit (given)",
        "50us (assumed)",
        "synthetic (Laplace) (assumed)",
        "60ms a step (given)",
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
    asked = PlanRequest.of(300_000, 3, rate="10mbit", forward_s=0.02, backward_s=0.04, most_hosts=4)
    assert PlanRequest.from_values(values["request"]) == asked
    assert [each["hosts"] for each in values["scaling"]] == [1, 2, 3, 4]


@pytest.mark.usefixtures("no_measuring")
def test_no_compression_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --model 300k --hosts 3 --rate unlimited --latency 0 --scale-to 0 --save plan.json"
    assert main(words.split()) == 0
    assert "no compression: identity over backend" in capsys.readouterr().out
    assert str(Plan.load("plan.json").codec) == "identity"


@pytest.mark.usefixtures("no_measuring")
def test_a_budget_that_only_identity_meets_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"{BASE} --codecs bf16,quantize:8 --largest-error 0".split()) == 0
    printed = capsys.readouterr().out
    assert "no compression" in printed
    assert "above the largest error of 0: bf16" in printed


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
