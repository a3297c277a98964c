from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gradwire import Plan
from gradwire.profile import run
from gradwire.profile.run import ProfileOptions, estimates, profile
from gradwire.profile.settings import Settings
from gradwire.script.entry import Entry
from gradwire.timing.line import Line
from support import observations

WANTED = ProfileOptions(("script",), rates=("100mbit", "unlimited"), hosts=(2, 8))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let the script be one that was observed already, and codecs have made-up costs."""
    found: dict[str, Any] = {"code": 0, "observed": observations.observed()}

    def run_script(command: tuple[str, ...], entry: Entry) -> int:
        found.update(command=command, settings=Settings.of_text(entry.settings))
        assert Path(entry.folder).is_dir()
        return int(found["code"])

    monkeypatch.setattr(run, "run_script", run_script)
    monkeypatch.setattr(run, "find_result", lambda _settings, _code: found["observed"])
    monkeypatch.setattr(run, "estimator", lambda observed, *_: observations.estimator(observed))
    return found


def test_a_row_for_each_network_and_number_of_hosts() -> None:
    assert WANTED.networks == [("100mbit", Line(5e-5, 12.5e6)), ("unlimited", Line(5e-5, float("inf")))]


def test_estimates_are_printed_and_written(
    seen: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen["code"] = 5
    record, plan = tmp_path / "record.json", tmp_path / "plan.json"
    wanted = ProfileOptions(("script", "x"), ("100mbit",), hosts=(4,), json=record, save=plan, steps=4)
    assert profile(wanted) == 5, "the script's own exit code"
    assert seen["command"] == ("script", "x")
    assert seen["settings"].steps == 4
    assert not Path(seen["settings"].folder).exists()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("On this network, "), "the verdict is first"
    assert any(line.startswith("DDP on 4 ranks") for line in shown)
    assert "gradwire's cost model, which predicts the steps below, predicts " in " ".join(shown)
    assert f"wrote {record}" in shown
    assert "gradwire profile: DDP on 4 ranks" in (tmp_path / "report.html").read_text(encoding="utf-8")
    found = json.loads(record.read_text(encoding="utf-8"))
    assert found["schema"] == "gradwire.profile/1"
    assert found["observed"]["world"] == 4
    assert [(each["network"], each["hosts"]) for each in found["estimates"]] == [
        ("this one", 4),
        ("100mbit", 4),
    ]
    assert json.loads(Plan.load(plan).to_json()) == found["estimates"][0]["plan"]


def test_a_machine_without_rank_0_says_where_to_look(
    seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    seen["observed"] = None
    assert profile(WANTED) == 0
    assert capsys.readouterr().out == (
        "The ranks on this machine were observed; rank 0's machine prints the result.\n"
    )


def test_a_signal_ends_the_script_and_leaves_no_folder(
    seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_command: tuple[str, ...], entry: Entry) -> int:
        seen["settings"] = entry
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr(run, "run_script", ended)
    with pytest.raises(SystemExit) as caught:
        profile(WANTED)
    assert caught.value.code == 128 + signal.SIGTERM
    assert not Path(seen["settings"].folder).exists()


def test_hosts_of_a_testbed_share_a_machine(seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    apart = estimates(seen["observed"], WANTED)
    assert apart.predicted_s is not None
    assert not apart.scaling, "only a page shows it"
    monkeypatch.setattr(run, "is_inside", lambda: True)
    together = estimates(seen["observed"], WANTED)
    assert [each.hosts for each in apart.estimates] == [4, 2, 8, 2, 8, 2, 8]
    assert together.estimates[-1].step_s > apart.estimates[-1].step_s
