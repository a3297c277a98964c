from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire import Auto, Plan
from gradwire.autotune.decision import Decision, Saved, State, fingerprint, load, refusal, save
from gradwire.autotune.settings import BUCKETS, terms_of

KEY = fingerprint([[3, 4], [3]], 4, "buckets")
SETTINGS = Auto(codecs=["quantize:8"])
TERMS = terms_of(SETTINGS)
PLAN = Plan.of("quantize:8", algorithm="tree", residual=False)
DECISION = Decision(PLAN, 0.5, 1.25, 0.25, "quantize:8 over tree")


def test_what_was_saved_comes_back_for_its_key_alone(tmp_path: Path) -> None:
    place = str(tmp_path / "run" / "auto.json")
    assert load(place, KEY, TERMS) is None
    save(place, KEY, TERMS, DECISION)
    assert load(place, KEY, TERMS) == DECISION
    for other in (
        fingerprint([[3, 4], [4]], 4, "buckets"),
        fingerprint([[3, 4], [3]], 5, "buckets"),
        fingerprint([[3, 4], [3]], 4, "a pipeline of 2"),
    ):
        assert load(place, other, TERMS) is None


def test_a_plan_with_lanes_comes_back_and_one_lane_is_left_out(tmp_path: Path) -> None:
    place = tmp_path / "auto.json"
    for lanes in (1, 4):
        decision = replace(DECISION, plan=replace(PLAN, lanes=lanes))
        save(str(place), KEY, TERMS, decision)
        assert load(str(place), KEY, TERMS) == decision
        assert ("lanes" in json.loads(place.read_text())["decision"]["plan"]) == (lanes > 1)
        lane = refusal(decision, SETTINGS, replace(BUCKETS, has_lanes=False), [])
        assert ("expected one lane" in lane) == (lanes > 1)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "gradwire.auto/1"}', '{"schema": "gradwire.auto/9"}']
)
def test_a_file_that_holds_something_else_is_measured_anew(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "auto.json"
    place.write_text(text)
    with caplog.at_level(logging.WARNING, "gradwire"):
        assert load(str(place), KEY, TERMS) is None
    assert ("chooses a new plan" in caplog.text) == (text != '{"schema": "gradwire.auto/1"}')


def test_a_damaged_decision_is_measured_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "auto.json"
    save(str(place), KEY, TERMS, DECISION)
    record = json.loads(place.read_text())
    record["decision"]["plan"]["codec"] = "quantize:4"
    place.write_text(json.dumps(record))
    assert load(str(place), KEY, TERMS) is None
    assert "the run chooses a new plan: the fields of " in caplog.text
    assert "do not match their checksum" in caplog.text
    del record["crc32c"]  # as earlier versions wrote it
    place.write_text(json.dumps(record))
    assert load(str(place), KEY, TERMS) is not None
    record["decision"]["plan"]["codec"] = "quantise"
    place.write_text(json.dumps(record))
    assert load(str(place), KEY, TERMS) is None
    assert "quantise" in caplog.text


def test_a_place_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    save(str(tmp_path / "file" / "auto.json"), KEY, TERMS, DECISION)
    assert "the chosen plan is not saved for the next run" in caplog.text


def of(settings: Auto, key: str = KEY) -> Saved:
    return Saved(settings, BUCKETS, ["0.weight", "0.bias"], key, tells=True)


@pytest.mark.parametrize(
    "other", [Auto(0.1, ["quantize:8"]), Auto(codecs=["quantize:8", "bf16"]), Auto(codecs=["lossless"])]
)
def test_a_decision_of_other_settings_is_not_of_this_run(other: Auto, tmp_path: Path) -> None:
    place = tmp_path / "auto.json"
    of(replace(SETTINGS, path=place)).save(DECISION)
    assert of(replace(SETTINGS, path=place)).load() == DECISION
    assert of(replace(other, path=place)).load() is None


@pytest.mark.parametrize(
    ("settings", "loads"),
    [
        (SETTINGS, True),
        (Auto(codecs=["quantize:8", "bf16"]), True),
        (Auto(codecs=["lossless"]), False),
        (Auto(0.001, ["quantize:8"]), False),
    ],
)
def test_an_older_file_loads_where_the_present_settings_allow_its_plan(
    settings: Auto, loads: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "auto.json"
    older = replace(DECISION, extra=0.0009)
    of(replace(SETTINGS, path=place)).save(older)
    record = json.loads(place.read_text())
    del record["settings"], record["crc32c"]
    place.write_text(json.dumps(record))
    assert of(replace(settings, path=place)).load() == (older if loads else None)
    assert ("the run ignores the decision in " in caplog.text) != loads


def test_a_checkpoint_goes_on_under_its_own_settings_alone(caplog: pytest.LogCaptureFixture) -> None:
    state = State(2, 8, 6, 60, 6, [(6, DECISION)], settings=TERMS)
    assert of(SETTINGS).allows(state)
    assert of(SETTINGS).allows(replace(state, settings="")), "an older one, with a plan of today's"
    assert not of(Auto(0.1, ["quantize:8"])).allows(state)
    assert "expected the settings 0.1, identity, quantize:8, got 0.2, identity" in caplog.text
    assert not of(Auto(codecs=["lossless"])).allows(replace(state, settings=""))
    assert not of(SETTINGS).allows(replace(state, decisions=[(6, replace(DECISION, extra=0.5))])), "damaged"
    assert of(Auto(codecs=["lossless"])).allows(State(2, 3, 6, 60, 0)), "nothing was decided"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_ordinary_file_is_neither_read_nor_replaced(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    before = place.lstat()
    run = of(replace(SETTINGS, path=place))
    assert run.load() is None
    run.save(DECISION)
    assert place.lstat().st_mode == before.st_mode
    assert caplog.text.count("expected a regular file for decisions") == 2


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "auto.json"
    with place.open("wb") as file:
        file.truncate(1 << 33)
    assert of(replace(SETTINGS, path=place)).load() is None
    assert "expected at most 16777216 bytes" in caplog.text


def test_nothing_from_outside_reaches_the_log_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "a\x1b[2J\nb.json"
    of(replace(SETTINGS, path=place)).save(replace(DECISION, reason="red \x1b[31m"))
    for text in (
        place.read_text(),
        "{",
        '{"schema": "\x1b]0;"}',
        '{"schema": "gradwire.auto/1", "key": "\\u001b[1m"}',
    ):
        place.write_text(text)
        of(replace(SETTINGS, path=place)).load()
    of(replace(SETTINGS, path=place / "below")).save(DECISION)
    place.unlink()
    place.mkdir()
    of(replace(SETTINGS, path=place)).save(DECISION)
    of(SETTINGS).allows(State(2, 8, 6, 60, 6, [(6, DECISION)], settings="\x1b[31m"))
    assert len(caplog.records) == 6
    assert all(record.getMessage().isprintable() for record in caplog.records)
