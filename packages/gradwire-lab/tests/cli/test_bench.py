"""The command: two ranks, a table, files; and mistakes that start nothing."""

import json
from pathlib import Path
from typing import NoReturn

import pytest

from gradwire.cli import main
from gradwire.timing.line import LineRate, fit
from gradwire_lab.testbed.topology import Topology
from support.forks import torchrun
from support.project import ROOT

PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "GRADWIRE_TESTBED"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.processes
def test_a_line_is_measured_shown_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed = {"topology": Topology.even(2, "1gbit").to_dict(), "shared_cores": 2}
    monkeypatch.setenv("GRADWIRE_TESTBED", json.dumps(testbed))
    effort = "--sizes 1,1KiB,64KiB --repeats 2 --time 0.01"
    assert main(f"line-rate {effort} --json out/line.json --plot line.png".split()) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "1/3 ranks 0 and 1, 1B: " in printed.out
    table = printed.out[printed.out.index("link between ranks 0 and 1, in a testbed of 1gbit") :]
    assert max(len(line) for line in table.splitlines()) <= 80
    assert [line.split()[0] for line in table.splitlines()[5:8]] == ["1B", "1KiB", "64KiB"]
    rate = LineRate.load(tmp_path / "out" / "line.json")
    assert [point.nbytes for point in rate.points] == [1, 1024, 65536]
    assert rate.line == fit(rate.points)
    record = json.loads((tmp_path / "out" / "line.json").read_text())
    assert record["topology"] == testbed
    assert record["pairs"][0]["ranks"] == [0, 1]
    assert (tmp_path / "line.png").read_bytes().startswith(PNG)


@pytest.mark.processes
def test_all_reduces_are_compared_shown_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "bench allreduce --workers 2,3 --algorithms ring,butterfly --codecs identity,quantize:8 "
        "--sizes 4000,64KiB --iterations 3 --warm-up 1 --no-line-rate --quiet --json a.json --plot a.png"
    )
    assert main(words.split()) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("all-reduce of laplace:0.001, not throttled")
    assert max(len(line) for line in printed.out.splitlines()) <= 80
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["schema"] == "gradwire.bench-allreduce/2"
    assert record["line"] is None
    results = record["results"]
    assert len(results) == 2 * 2 * (1 + 2 * 2)
    for result in results:
        assert len(result["seconds"]) == 3
        assert result["largest_error"] <= result["allowed_error"]
        p, busbw = result["world"], result["busbw_nbytes_per_s"]
        assert busbw == pytest.approx(result["nbytes"] / result["p50_s"] * 2 * (p - 1) / p)
        assert result["best_s"] is None
        if result["algorithm"] == "torch":
            assert (result["speed_up_over_torch"], result["wire_nbytes"]) == (1, None)
        elif result["codec"] == "quantize:8" and result["nbytes"] == 65536:
            assert result["ratio"] == pytest.approx(4, rel=0.05)
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


@pytest.mark.processes
def test_ranks_of_torchrun_measure_every_pair_and_only_one_speaks(tmp_path: Path) -> None:
    words = "line-rate --all-pairs --sizes 1,64KiB --repeats 1 --time 0.001 --json l.json"
    program, three = ROOT / "packages/gradwire/src/gradwire/__main__.py", ("--nproc-per-node=3",)
    done = torchrun(program, *words.split(), options=three, log=tmp_path / "log", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("links of all pairs") == 1
    record = json.loads((tmp_path / "l.json").read_text())
    assert [pair["ranks"] for pair in record["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    assert record["options"]["workers"] == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "expected a benchmark, got none; pass one of allreduce"),
        ("latency", "expected one of allreduce, got 'latency'"),
        ("line-rate --workers 1", "--workers: expected 2 to 64, got 1"),
        ("line-rate --min 4 --max 2", "expected sizes of at least 1 byte for --min and --max"),
        ("line-rate --sizes 4x", "expected a size such as '16MB'"),
        ("line-rate --repeats 0", "a whole number of at least 1 for repeats in a link's measurement, got 0"),
        ("line-rate --time nan", "a finite number above 0 for time_s"),
        ("line-rate --repeats 1000000", "expected at most 1000 for --repeats"),
        ("line-rate --time 1e9", "got 5, 1e+09 and 16"),
        ("line-rate --rate 3mbps", "expected a rate such as"),
        ("line-rate --rate 1bit", "--rate: expected 1kbit to 1000gbit"),
        ("line-rate --timeout 0", "--timeout: expected 1 to 86400"),
        ("line-rate --json file/x.json", "--json file/x.json cannot be written: file: Not a directory"),
        ("line-rate --json .", "--json . is a folder; pass a file"),
        ("line-rate --plot=", "name a file"),
        ("line-rate --json file", "--json file already exists; pass another file, or --overwrite"),
        ("allreduce --plot file", "--plot file already exists"),
        ("allreduce --json a --plot a", "expected two files for --json and --plot, got a twice"),
        ("allreduce --json a --plot b/../a", "expected two files for --json and --plot, got b/../a twice"),
        ("allreduce --sizes 4,7", "expected multiples of 4 bytes (float32) for --sizes, got 7"),
        ("allreduce --codecs zip", "unknown codec 'zip'"),
        ("allreduce --algorithms gossip", "unknown algorithm 'gossip'"),
        ("allreduce --segments 5", "expected multiples of 16384 bytes for --segments, got 5"),
        ("allreduce --workers 2,1", "--workers: expected 2 to 64, got 1"),
        ("allreduce --workers 2,x", "expected comma-separated whole numbers, such as 2,4,8, for --workers"),
        ("allreduce --iterations 0", "expected --iterations from 1 to"),
        ("allreduce --max-time nan", "expected --max-time above 0"),
        ("allreduce --values zeros", "expected --values such as laplace"),
        ("allreduce --values laplace:1e308", "expected --values with a scale from 1e-30 to 1e+30"),
        ("allreduce --values normal:1e-320", "expected --values with a scale from 1e-30 to 1e+30"),
        ("allreduce --values none.pt", "--values none.pt cannot be read"),
        ("allreduce --measured none.json", "the line rate none.json cannot be read"),
        ("allreduce --measured other.json", "was measured on another machine"),
        ("allreduce --measured file --no-line-rate", "got both; omit one"),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    reason: str,
) -> None:
    monkeypatch.setattr("gradwire.line_rate.ranks.run_local", never)
    (tmp_path / "file").touch()
    write_a_line_of_another_machine(tmp_path / "other.json")
    before = sorted(tmp_path.iterdir())
    before_what = [] if words.startswith("line-rate") else ["bench"]
    assert main([*before_what, *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert sorted(tmp_path.iterdir()) == before


def test_more_than_the_memory_holds_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.line_rate.ranks.run_local", never)
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 1000}.get)
    assert main(["bench", "allreduce", "--sizes", "50000,100000", "--workers", "2,3"]) == 2
    reason = "expected at most 1MB of memory on this machine, got 1.5MB for 3 ranks with 100kB each"
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("what", ["line-rate", "allreduce"])
@pytest.mark.parametrize(
    ("variables", "words", "reason"),
    [
        ({"WORLD_SIZE": "1"}, "", "at least 2 ranks for a benchmark, got 1; start more"),
        ({"WORLD_SIZE": "2"}, "--workers 3", "expected processes for 3 workers, got 2;"),
        ({"WORLD_SIZE": "2", "GRADWIRE_TESTBED": "{"}, "", "expected JSON in GRADWIRE_TESTBED, got"),
        ({"WORLD_SIZE": "2", "GRADWIRE_TESTBED": "1"}, "", "GRADWIRE_TESTBED holds no valid network"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    variables: dict[str, str],
    words: str,
    reason: str,
) -> None:
    monkeypatch.setattr("gradwire.line_rate.ranks.run_joined", never)
    for name, value in ({"RANK": "0", "MASTER_ADDR": "127.0.0.1"} | variables).items():
        monkeypatch.setenv(name, value)
    assert main([*_command(what), *words.split()]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("what", ["line-rate", "allreduce"])
def test_every_benchmark_has_help_that_fits(
    capsys: pytest.CaptureFixture[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*_command(what), "--help"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 50
    assert max(len(line) for line in printed) <= 80
    assert printed[printed.index("example:") + 1].startswith(f"  gradwire {' '.join(_command(what))} ")


def _command(what: str) -> list[str]:
    return [what] if what == "line-rate" else ["bench", what]


def never(*_: object) -> NoReturn:
    raise AssertionError("ranks were started")


def write_a_line_of_another_machine(path: Path) -> None:
    line = {"latency_s": 1e-4, "nbytes_per_s": 1e9, "burst_nbytes": 0.0}
    values = {"schema": "gradwire.line-rate/1", "line": line, "machine": {}, "machine_id": "x", "points": []}
    path.write_text(json.dumps(values))
