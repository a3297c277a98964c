"""``gradwire demo``: a short one on a real testbed, and what it does where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradwire import errors
from gradwire.cli import main
from gradwire.codecs import DEFAULT_CODEC
from gradwire_lab.cli import demo, train
from gradwire_lab.job.demo import SETTLED
from gradwire_lab.job.options import JobOptions
from support.beds import needs_namespaces

SHORT = ["--epochs", "1", "--max-steps", "4", "--evaluate-every", "1"]
SLOW_PARTS = {"attach": ["--runs", "ddp,attach:auto", *SHORT]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "LENGTH", SHORT)
    monkeypatch.setattr(demo, "SLOW_PARTS", SLOW_PARTS)
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
    assert printed.out.startswith(
        "demo: one model on 2 hosts at 1gbit, trained in four ways, then steps at 100"
    )
    assert max(map(len, printed.out.splitlines()[:2])) <= 80
    assert re.search(r"^DDP: step 4/4, loss \d", printed.out, re.MULTILINE)
    assert re.search(r"^100mbit, attach \+ auto: step 4/4, loss \d", printed.out, re.MULTILINE)
    verdict = printed.out.index("At 1gbit, DDP did not learn: its top-1")
    assert (
        printed.out.rindex("step 4/4")
        < verdict
        < printed.out.index("digits, wide: 2 hosts at 1gbit, 4 steps")
    )
    assert "At 100mbit, a step of attach + auto is " in " ".join(printed.out.split())
    assert "gradwire plan --model 25.6M --hosts 2 --rate 1gbit\n" in printed.out
    assert "h0 |" not in printed.out + printed.err
    assert "gradwire-event" not in printed.out
    record = json.loads(Path("out/record.json").read_text())
    assert [run["run"] for run in record["runs"]] == [
        "ddp:identity",
        "bf16-hook:identity",
        "attach:auto",
        "pipe:auto",
    ]
    assert record["equal_loss"]["baseline"] == "ddp:identity"
    assert Path("out/training.png").stat().st_size > 10_000
    assert Path("out/demo.png").stat().st_size > 10_000
    assert Path("out/100mbit-attach/record.json").is_file()
    assert printed.out.endswith("the picture is out/demo.png\nthe page is out/report.html\n")
    assert "DDP did not learn" in Path("out/report.html").read_text()


def test_without_a_testbed_it_says_so_and_compares_what_can_be_paced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_bed: object) -> None:
        raise errors.TestbedError("a testbed needs network namespaces, which this machine refuses")

    performed: list[JobOptions] = []
    monkeypatch.setattr("gradwire_lab.testbed.bed.Testbed.__enter__", refused)
    monkeypatch.setattr("gradwire_lab.job.job.perform_job", lambda options, **_: performed.append(options))
    assert main(["demo", "--rate", "500mbit", "--out", "out"]) == 0
    announced, duration, said = capsys.readouterr().out.split("\n", 2)
    assert announced.startswith("demo: ")
    assert duration == "three to four minutes on two cores"
    assert said == (
        "a testbed needs network namespaces, which this machine refuses. Without a testbed, DDP's "
        "traffic cannot be throttled, so D-Sync over throttled links, uncompressed and with bf16, "
        "replaces DDP.\n"
    )
    (options,) = performed
    runs = "sync:identity", "sync:bf16", f"sync:{DEFAULT_CODEC}", f"pipe:{DEFAULT_CODEC}"
    assert [str(run) for run in options.runs] == list(dict.fromkeys(runs))
    assert (options.link, options.workers, options.model) == ("500mbit", 4, "wide")


def test_its_own_length_gives_enough_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    options = train.read([*demo.MODEL, *demo.LENGTH, "--out", "out"])
    assert options.max_steps is not None
    assert options.evaluate_every is not None
    assert options.max_steps // options.evaluate_every >= 8
    assert options.epochs * (1438 // options.batch) >= options.max_steps


def test_a_slow_network_is_not_followed_by_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rate", "1mbit", "--help"]) == 0
    assert "Then time steps at 100mbit" in capsys.readouterr().out
    assert demo._announcement("100mbit", has_slow=False).count("100mbit") == 1


def test_the_parts_on_the_slow_network_are_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for words in demo.SLOW_PARTS.values():
        options = train.read([*demo.MODEL, *words, "--out", "out"])
        assert options.max_steps is not None
        assert options.evaluate_every is not None
        assert options.max_steps // options.evaluate_every > SETTLED
        assert options.epochs * (1438 // options.batch) >= options.max_steps


def test_a_host_that_fails_ends_it_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failed:
        failure, exit_code = "h2 ended with exit code 2", 2

    class Bed:
        def __init__(self, topology: object) -> None:
            self.topology = topology

        def __enter__(self) -> Bed:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, *_: object, **__: object) -> type[Failed]:
            return Failed

    monkeypatch.setattr(demo, "Testbed", Bed)
    assert main(["demo", "--out", "out"]) == 2
    assert capsys.readouterr().err == "gradwire: h2 ended with exit code 2\n"
