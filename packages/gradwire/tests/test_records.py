from __future__ import annotations

import importlib.metadata
import json
import math
from pathlib import Path

import pytest

from gradwire.errors import SpecError
from gradwire.records import make_record, read_object, read_record, to_json

SCHEMA = "gradwire.test/2"


def read(path: Path) -> dict[str, object]:
    return read_record(path, SCHEMA, "test", "'gradwire test' writes one")


def test_a_record_says_what_it_is_where_it_is_from_and_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(to_json(make_record(SCHEMA, {"seconds": [0.5]}, load=0.25)))
    found = read(path)
    assert list(found) == ["schema", "machine", "versions", "seconds"]
    assert found["seconds"] == [0.5]
    assert found["machine"] == make_record(SCHEMA, {}, load=0.25)["machine"]
    versions = found["versions"]
    assert isinstance(versions, dict)
    assert versions["torch"] == importlib.metadata.version("torch")


def test_a_record_that_was_read_keeps_its_machine() -> None:
    assert make_record(SCHEMA, {"machine": {"processor": "Abacus"}})["machine"] == {"processor": "Abacus"}


def test_what_json_has_no_word_for_is_null() -> None:
    told = to_json({"loss": math.nan, "rows": [(math.inf, 1.0)], "each": {"low": -math.inf, "n": 3}})
    assert json.loads(told) == {"loss": None, "rows": [[None, 1.0]], "each": {"low": None, "n": 3}}


def test_an_older_record_is_read_and_a_newer_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"schema": "gradwire.test/1", "seconds": 1}')
    assert read(path) == {"schema": "gradwire.test/1", "seconds": 1}
    path.write_text('{"schema": "gradwire.test/10"}')
    with pytest.raises(
        SpecError, match=r"by a newer gradwire: expected at most the schema \S+/2, got gradwire\.t"
    ):
        read(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"the test \S+ cannot be read: No such file or directory; 'gradwire test' writes one"),
        (b"\xff", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", r"is not a test: expected the schema gradwire\.test/2, got None"),
        (b'{"schema": "gradwire.train/1"}', r"expected the schema gradwire\.test/2, got 'gradwire\.train/1'"),
        (b'{"schema": "gradwire.test"}', "got 'gradwire.test'"),
        (b'{"schema": "gradwire.test/-1"}', "got 'gradwire.test/-1'"),
        (b'{"schema": {}}', "got {}"),
    ],
)
def test_what_is_no_such_record_is_refused_with_its_name(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=reason) as caught:
        read(path)
    assert "record.json" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000])
def test_text_that_is_no_json_is_no_object(text: str) -> None:
    with pytest.raises(SpecError, match=r"^expected a JSON object for a plan, got invalid JSON: "):
        read_object(text, "a plan")


def test_an_object_is_read_and_nothing_else() -> None:
    assert read_object('{"a": [1]}', "a plan") == {"a": [1]}
    with pytest.raises(SpecError, match=r"^expected a JSON object for a plan, got a list; pass an object"):
        read_object("[]", "a plan")


def test_half_a_character_is_refused_before_any_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in ('{"schema": "gradwire.test/1", "name": "\\ud800"}', '{"\\udfff": 1}'):
        path.write_text(text)
        with pytest.raises(SpecError, match=r"is not valid JSON: it contains a lone surrogate \('\\ud"):
            read(path)
        with pytest.raises(SpecError, match="lone surrogate"):
            read_object(text, "x")
    assert read_object('{"smile": "\\ud83d\\ude00"}', "x") == {"smile": "\U0001f600"}


def test_a_version_of_many_digits_is_no_schema(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(f'{{"schema": "gradwire.test/{"9" * 5000}"}}')
    with pytest.raises(SpecError, match="is not a test: expected the schema") as caught:
        read(path)
    assert len(str(caught.value)) < 400
