from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.machine import TOPOLOGY
from gradwire.timing.line import LineRate, Point

BASE = "plan --model 300k --hosts 3 --rate 10mbit"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOPOLOGY, raising=False)


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
        (f"{BASE} --objective loss", "--objective loss needs the noise of real gradients"),
        (f"{BASE} --nic quantize:8", "a NIC cuts streams anywhere"),
        (f"{BASE} --scale auto", "a scale fits the absolute bounds"),
        (f"{BASE} --sharded 0", "sharded must be the learning rate"),
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
    monkeypatch.setattr("gradwire.planner.cluster.measure_host", never)
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
