import gzip
import re
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire_gateware.cli import COMMANDS as GATEWARE
from gradwire_lab.cli import COMMANDS as LAB
from gradwire_lab.job.options import JobOptions
from support.commands import left_by_its_reader


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("GRADWIRE_DATA", "RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("words", [[name, "--help"] for name in (*LAB, *GATEWARE)])
def test_help_fits_a_screen_and_shows_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 45
    assert max(len(line) for line in printed) <= 80
    assert "example:" in printed
    assert printed[printed.index("example:") + 1].startswith("  gradwire ")


def test_without_a_command_it_names_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    named = re.findall(r"^  gradwire (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert named == ["doctor", "demo", "plan", "profile", "run"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("train --worker 4", "of gradwire train, got --worker (did you mean '--workers'?)"),
        ("train --workers four", "expected a whole number, got 'four'"),
        ("train --workers 0", "expected --workers from 1 to 64"),
        ("train --workers 3", "pass 99, the nearest multiple"),
        ("train --method fast", "argument --method: expected one of ddp, "),
        ("train --codec zip", "unknown codec 'zip'"),
        ("train --codec quantize:9", "4 or 8 bits"),
        ("train --codec errbound:0.001", "power of two"),
        ("train --rate 100mbps", "expected a rate such as '100mbit'"),
        ("train --algorithm gossip", "unknown algorithm 'gossip'; choose one of backend"),
        ("train --algorithm hierarchical:4,ring", "one more algorithm than group sizes"),
        ("train --model gpt", "expected one of mlp, hdc, wide, cnn for --model"),
        ("train --data imagenet", "expected one of digits, mnist, fashion for --data"),
        ("train --batch 5000", "at most the 1438 training images of digits, got 5000; pass at most 1436"),
        ("train --batch -4", "expected --batch from 1 to "),
        ("train --epochs 0", "expected --epochs from 1 to "),
        ("train --lr 0", "expected --lr above 0"),
        ("train --lr inf", "expected --lr above 0"),
        ("train --lr 1e300", "expected --lr above 0"),
        ("train --segment 7", "expected a whole number from 16384 to 17179852800 for --segment, got 7"),
        ("train --segment 1GiB", "for a segment of 1073741824 bytes"),
        ("train --segment big", "--segment: expected a size such as '16MB'"),
        ("train --bucket 25MBps", "--bucket: expected a size such as '16MB'"),
        ("train --bucket 2", "expected a whole number from 4 to"),
        ("train --plan nowhere.json", "the plan nowhere.json cannot be read: No such file or directory"),
        ("train --plan=", "name a file"),
        ("train --plan file", "the plan file is not valid: expected a JSON object for a plan"),
        ("train --plan deep.json", "a pipeline of at most 16 steps, got 17 in deep.json"),
        (
            "train --plan deep.json --compare --codec=",
            "expected --plan without --codec and --compare, got both; omit --codec and --compare",
        ),
        ("train --plan deep.json --runs sync --method sync", "omit --method and --runs"),
        ("train --plan deep.json --algorithm ring --pipeline 2", "omit --algorithm and --pipeline"),
        ("train --plan deep.json --segment 4MiB --bucket 4", "omit --segment and --bucket"),
        ("train --pipeline 0", "expected a whole number from 1 to"),
        ("train --pipeline 17", "expected --pipeline from 1 to 16"),
        ("train --warmup-epochs 99", "expected --warmup-epochs from 0 to 8"),
        ("train --max-steps 0", "expected --max-steps from 1 to "),
        ("train --timeout 0", "expected --timeout from 1 to 86400"),
        ("train --timeout 1e300", "expected --timeout from 1 to 86400"),
        ("train --timeout nan", "expected --timeout from 1 to 86400, got nan"),
        ("train --rate 0.0000001bit", "--rate: expected 1kbit to 1000gbit"),
        ("train --out file/below", "--out file/below cannot be written"),
        ("train --compare sync", "argument --compare: expected one of paper, ddp, got 'sync'"),
        ("train --compare ddp --rate 1gbit", "--rate cannot throttle ddp:identity"),
        ("train --evaluate-every 0", "expected --evaluate-every from 1 to "),
        ("train --schedule linear", "expected one of cosine, constant for --schedule"),
        ("demo --rate fast", "expected a rate such as '100mbit'"),
        ("demo --out=", "name a folder"),
        ("demo --out file/below", "--out file/below cannot be written"),
        ("demo x", "expected no further argument, got 'x'"),
        ("demo --rat 1gbit", "of gradwire demo, got --rat (did you mean '--rate'?)"),
        ("train --timeout soon", "expected a time such as '30s', '500ms' or '30' (seconds), got 'soon'"),
        ("train --compare --method sync", "expected --compare or --method, got both"),
        ("train --runs sync,pipe --codec fp16", "expected --runs without --compare, --method, and --codec"),
        ("train --codec=", "or 'identity', got ''"),
        ("train --compare --codec=", "or 'identity', got ''"),
        ("train --out=", "name a folder"),
        ("train --data-dir=", "name a folder"),
        ("train --data-dir file", "got digits, which needs no files"),
        ("train --out full", "no folder named record.json"),
        ("train --out dangling", "--out dangling cannot be written"),
        (f"train --out {'a' * 300}", "File name too long; pass another folder"),
        (
            "train --runs async:fp16",
            "expected METHOD:CODEC, as in 'pipe:quantize:8', with one of the methods",
        ),
        ("train --runs sync,sync", "got sync:identity twice in"),
        ("train --data mnist --data-dir nowhere", "MNIST is incomplete in nowhere"),
        (
            "train --data mnist --data-dir damaged",
            "train-images-idx3-ubyte.gz is damaged: expected the magic number 0x00000803, got 0x00000000",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full" / "record.json").mkdir(parents=True)
    (tmp_path / "dangling").symlink_to("nowhere")
    make_damaged(tmp_path / "damaged")
    (tmp_path / "deep.json").write_text('{"pipeline": 17}')
    before = sorted(tmp_path.rglob("*"))
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("pipeline", "method"), [(1, "sync"), (2, "pipe"), (5, "pipe")])
def test_a_plan_stands_for_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline: int, method: str
) -> None:
    performed: list[JobOptions] = []
    monkeypatch.setattr("gradwire_lab.job.job.perform_job", lambda options, **_: performed.append(options))
    plan = Plan(parse("quantize:8"), "star", 1 << 16, pipeline, 25_000_000)
    plan.save(tmp_path / "plan.json")
    said = f"--method {method} --codec quantize:8 --algorithm star --segment 64KiB --bucket 25MB"
    assert main(["train", "--plan", "plan.json", "--out", "out"]) == 0
    assert main(f"train {said} --pipeline {pipeline} --out out".split()) == 0
    assert performed[0].runs == performed[1].runs
    assert [each.plan(each.runs[0]) for each in performed] == [plan, plan]
    assert performed[0].plan(performed[0].runs[0]) == plan


@pytest.mark.processes
def test_a_reader_who_leaves_ends_it_in_silence(tmp_path: Path) -> None:
    words = ["train", "--epochs", "2", "--workers", "1", "--out", "out"]
    assert left_by_its_reader(words, tmp_path) == (141, b"")
    assert not list(tmp_path.iterdir())


def make_damaged(folder: Path) -> None:
    folder.mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(bytes(100))[:-7])
