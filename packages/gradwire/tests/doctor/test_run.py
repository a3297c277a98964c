"""The doctor's visit as a process makes it: alone, or as one rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.doctor import ranks
from gradwire.doctor import report as run
from gradwire.doctor.finding import Card, Diagnosis, DoctorOptions, Finding
from gradwire.doctor.report import run_doctor
from gradwire.errors import JobError, LinkError
from gradwire.launch.launched import VARIABLES

Cards = Callable[..., list[Card]]


@pytest.fixture
def examined(make_cards: Cards, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return what machines are examined for; all are well. No launcher has started this process."""
    asked: list[tuple[Any, ...]] = []
    (card,) = make_cards(1)

    def examine(*words: Any) -> Card:
        asked.append(words)
        return card

    monkeypatch.setattr(run, "examine_machine", examine)
    monkeypatch.setattr(ranks, "examine_machine", examine)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return asked


def launch(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    for variable, value in zip(VARIABLES, (str(rank), str(world), "127.0.0.1"), strict=True):
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))


def test_a_machine_alone_is_examined_shown_and_kept(
    examined: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "doctor.json"
    assert run_doctor(DoctorOptions(Path("plan.json"), file)) == 0
    assert examined == [(Path("plan.json"), 1, 1)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["gradwire doctor: this machine", "1 ok, 0 warn, 0 FAIL: ready to train"]
    assert lines[-1] == f"the page is {tmp_path / 'doctor.html'}"
    assert "Ready to train: 1 ok" in (tmp_path / "doctor.html").read_text()
    record = json.loads(file.read_text())
    assert (record["ready"], [each["rank"] for each in record["ranks"]]) == (True, [0])
    with pytest.raises(JobError, match="already exists"):
        run_doctor(DoctorOptions(json_file=file))
    assert run_doctor(DoctorOptions(json_file=file, overwrite=True)) == 0


@pytest.mark.usefixtures("examined")
def test_a_machine_that_fails_is_exit_code_1(make_cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    (card,) = make_cards(1)
    broken = replace(card, findings=(Finding("Python", "FAIL", "too old"),))
    monkeypatch.setattr(run, "examine_machine", lambda *_: broken)
    assert run_doctor(DoctorOptions()) == 1


@pytest.mark.parametrize("timeout_s", [0.5, 1e6, float("nan")])
def test_a_timeout_that_is_none_is_refused_first(timeout_s: float, examined: list[tuple[Any, ...]]) -> None:
    with pytest.raises(JobError, match="--timeout: expected 1 to 86400"):
        run_doctor(DoctorOptions(timeout_s=timeout_s))
    assert examined == []


def test_a_rank_without_a_store_reports_for_itself(
    examined: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def nobody(timeout_s: float) -> HashStore:
        raise JobError(f"rank 0 did not come within {timeout_s:g} s")

    launch(monkeypatch, 1, 3)
    monkeypatch.setattr(ranks, "join_launched", nobody)
    file = tmp_path / "doctor.json"
    file.write_text("rank 0's")
    assert run_doctor(DoctorOptions(json_file=file, timeout_s=2.0)) == 1
    assert [each.read_text() for each in tmp_path.iterdir()] == ["rank 0's"], "only rank 0 writes a record"
    assert examined == [(None, 3, 3)], "with three neighbours"
    printed = capsys.readouterr().out
    assert printed.startswith("gradwire doctor: rank 1 of 3\n")
    assert "rank 0 did not come within 2 s" in printed


@pytest.mark.usefixtures("examined")
def test_another_rank_obeys_and_says_nothing(
    make_cards: Cards, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def follow(_words: object, card: Card, rank: int, _connect: object, timeout_s: float) -> int:
        seen.append((card, rank, timeout_s))
        return 7

    launch(monkeypatch, 2, 3)
    monkeypatch.setattr(ranks, "join_launched", lambda _: HashStore())
    monkeypatch.setattr(ranks, "follow", follow)
    assert run_doctor(DoctorOptions(timeout_s=2.0)) == 7, "what rank 0 orders"
    assert seen == [(make_cards(1)[0], 2, 2.0)]
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("examined")
def test_a_rank_0_that_is_gone_is_a_finding_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def follow(*_: object) -> int:
        raise LinkError("nothing came within 2 s")

    launch(monkeypatch, 1, 2)
    monkeypatch.setattr(ranks, "join_launched", lambda _: HashStore())
    monkeypatch.setattr(ranks, "follow", follow)
    assert run_doctor(DoctorOptions()) == 1
    assert "within 2 s; check that rank 0 still runs" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("examined")
def test_rank_0_leads_and_reports_for_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def lead(
        _words: object, card: Card, world: int, _connect: object, timeout_s: float, *, lines: bool
    ) -> Diagnosis:
        seen.append((world, timeout_s, lines))
        return Diagnosis([Finding("clocks", "FAIL", "far apart")], [card], [0])

    launch(monkeypatch, 0, 4)
    monkeypatch.setattr(ranks, "join_launched", lambda _: HashStore())
    monkeypatch.setattr(ranks, "lead", lead)
    assert run_doctor(DoctorOptions(timeout_s=3.0, lines=False)) == 1
    assert seen == [(4, 3.0, False)]
    assert capsys.readouterr().out.startswith("gradwire doctor: 4 ranks\n")
