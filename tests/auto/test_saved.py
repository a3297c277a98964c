from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gradwire import Plan
from gradwire.auto import saved
from gradwire.auto.choice.decision import Decision

KEY = saved.fingerprint([[3, 4], [3]], 4, "buckets")
DECISION = Decision(Plan.of("quantize:8", algorithm="tree"), 0.5, 1.25, 0.25, "quantize:8 over tree")


def test_what_was_saved_comes_back_for_its_key_alone(tmp_path: Path) -> None:
    place = str(tmp_path / "run" / "auto.json")
    assert saved.load(place, KEY) is None
    saved.save(place, KEY, DECISION)
    assert saved.load(place, KEY) == DECISION
    for other in (
        saved.fingerprint([[3, 4], [4]], 4, "buckets"),
        saved.fingerprint([[3, 4], [3]], 5, "buckets"),
        saved.fingerprint([[3, 4], [3]], 4, "a pipeline of 2"),
    ):
        assert saved.load(place, other) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "gradwire.auto/1"}', '{"schema": "gradwire.auto/9"}']
)
def test_a_file_that_holds_something_else_is_measured_anew(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "auto.json"
    place.write_text(text)
    with caplog.at_level(logging.WARNING, "gradwire"):
        assert saved.load(str(place), KEY) is None
    assert ("chooses its plan anew" in caplog.text) == (text != '{"schema": "gradwire.auto/1"}')


def test_a_damaged_decision_is_measured_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "auto.json"
    saved.save(str(place), KEY, DECISION)
    record = json.loads(place.read_text())
    record["decision"]["plan"]["codec"] = "quantize:4"
    place.write_text(json.dumps(record))
    assert saved.load(str(place), KEY) is None
    assert "the run chooses its plan anew: the fields of " in caplog.text
    assert "are not what was saved" in caplog.text
    del record["crc32c"]  # as earlier versions wrote it
    place.write_text(json.dumps(record))
    assert saved.load(str(place), KEY) is not None
    record["decision"]["plan"]["codec"] = "quantise"
    place.write_text(json.dumps(record))
    assert saved.load(str(place), KEY) is None
    assert "quantise" in caplog.text


def test_a_place_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    saved.save(str(tmp_path / "file" / "auto.json"), KEY, DECISION)
    assert "the chosen plan is not kept for the next run" in caplog.text
