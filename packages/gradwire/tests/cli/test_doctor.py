"""The command: alone, as ranks that somebody has started, and with mistakes."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.codecs import parse
from gradwire.plan import Plan
from support.forks import Program

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "GRADWIRE_TESTBED")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_alone_it_checks_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Plan(parse("quantize:8"), "star").save(tmp_path / "plan.json")
    assert main(["doctor", "--plan", "plan.json", "--json", "out/doctor.json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == "gradwire doctor: this machine"
    assert lines[1].endswith(" 0 FAIL: ready to train")
    assert lines[-1] == "the page is out/doctor.html"
    assert max(map(len, lines)) <= 80
    record = json.loads((tmp_path / "out" / "doctor.json").read_text())
    assert (record["schema"], record["ready"]) == ("gradwire.doctor/1", True)
    checks = [finding["check"] for finding in record["findings"]]
    assert {"Python", "torch", "gradwire", "kernels", "Gloo", "interface", "TLS", "plan"} <= set(checks)
    assert checks == [line.split("  ")[0] for line in lines[5:-1] if line[:1].strip()]
    assert (len(record["ranks"]), record["clocks"], record["lines"]) == (1, [], [])


@pytest.mark.parametrize(
    ("variables", "words", "checks"),
    [
        ({"GLOO_SOCKET_IFNAME": "nope0"}, "doctor", "interface"),
        ({"GLOO_DEVICE_TRANSPORT": "TCP_TLS"}, "doctor", "TLS"),
        ({"GRADWIRE_TLS_CA": "missing.pem"}, "doctor", "TLS"),
        ({}, "doctor --plan missing.json", "plan"),
        ({"GRADWIRE_THREADS": "many"}, "doctor", "kernels cores"),
    ],
)
def test_what_would_fail_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    words: str,
    checks: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(words.split()) == 1
    printed = capsys.readouterr()
    assert [
        line.split()[0] for line in printed.out.splitlines() if line[:60].split()[1:2] == ["FAIL"]
    ] == checks.split()
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("doctor --timeout 0", "--timeout: expected 1 to 86400"),
        ("doctor --timeout nan", "--timeout: expected 1 to 86400"),
        ("doctor --json .", "--json . is a folder; pass a file"),
        (
            "doctor --json older.json",
            "--json older.json already exists; pass another file, or --overwrite",
        ),
        ("doctor --plan=", "name a file"),
        ("doctor now", "expected no further argument, got 'now'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    Path("older.json").touch()
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_a_rank_that_is_told_only_half_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(["doctor"]) == 2
    assert "got no WORLD_SIZE and MASTER_ADDR" in capsys.readouterr().err


def test_a_rank_that_meets_nobody_reports_itself_in_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in zip(VARIABLES, (1, 2, "127.0.0.1", free_port()), strict=False):
        monkeypatch.setenv(name, str(value))
    started = time.monotonic()
    assert main(["doctor", "--timeout", "1"]) == 1
    assert time.monotonic() - started < 20
    out = capsys.readouterr().out
    assert "gradwire doctor: rank 1 of 2" in out
    assert "rank 1 cannot reach rank 0" in out


@pytest.mark.processes
def test_ranks_are_compared_and_rank_0_reports(tmp_path: Path) -> None:
    Plan(parse("errbound:2^-10"), "ring").save(tmp_path / "plan.json")
    done = run_ranks(3, "doctor --plan plan.json --json doctor.json --timeout 30")
    assert [code for code, _ in done] == [0, 0, 0], done
    assert [out for _, out in done[1:]] == ["", ""]
    record = json.loads((tmp_path / "doctor.json").read_text())
    found = {finding["check"]: finding for finding in record["findings"]}
    alike = {
        check: found[check]["result"]
        for check in ("same gradwire", "same frames", "same kernels", "same plan")
    }
    assert set(alike.values()) == {"ok"}
    assert [found[check]["result"] for check in ("connection", "trial")] == ["ok", "ok"]
    assert [line["ranks"] for line in record["lines"]] == [[0, 1], [0, 2]]
    for clock in record["clocks"]:  # of one machine, so the ranks' clocks are one
        assert abs(clock["offset_s"]) <= clock["uncertainty_s"] + 1e-3
    assert len(record["ranks"]) == 3


@pytest.mark.processes
def test_another_plan_on_one_rank_fails_all(tmp_path: Path) -> None:
    for name, algorithm in (("0", "ring"), ("1", "star")):
        (tmp_path / name).mkdir()
        Plan(algorithm=algorithm).save(tmp_path / name / "plan.json")
    done = run_ranks(2, "doctor --plan plan.json --no-line-rate", folders=("0", "1"))
    assert [code for code, _ in done] == [1, 1]
    assert "same plan" in done[0][1]
    assert "use a copy of the same file on all ranks" in " ".join(done[0][1].split())
    assert "trial" not in done[0][1]


def run_ranks(world: int, words: str, folders: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    """Start ranks as torchrun would, each in its folder; return their exit codes and standard outputs."""
    shared = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    shared["GLOO_SOCKET_IFNAME"] = "lo"
    here = Path.cwd()
    programs = [
        Program(
            here / f"log{rank}",
            here / folders[rank] if folders else here,
            {"RANK": str(rank)} | {name: str(value) for name, value in shared.items()},
            main,
            words.split(),
        )
        for rank in range(world)
    ]
    try:
        done = [program.ended() for program in programs]
    finally:
        for program in programs:
            program.stop()
    assert not any("Traceback" in each.stderr for each in done), done
    return [(each.returncode, each.stdout) for each in done]


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])
