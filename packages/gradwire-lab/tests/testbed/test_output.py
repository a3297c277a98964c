from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import errors
from gradwire_lab.testbed.output import Lines, Logs, Stream, show


class Kept:
    def __init__(self) -> None:
        self.calls: list[tuple[int, Stream, bytes]] = []

    def __call__(self, host: int, stream: Stream, text: bytes) -> None:
        self.calls.append((host, stream, text))


@given(st.lists(st.binary(min_size=1, max_size=9).map(lambda part: part.replace(b"a", b"\n"))))
def test_whole_lines_are_passed_on_and_nothing_is_lost(parts: list[bytes]) -> None:
    kept = Kept()
    lines = Lines(3, "err", (kept,))
    for part in parts:
        lines.take(part)
        assert all(text.endswith(b"\n") for _, _, text in kept.calls)
    seen = b"".join(text for _, _, text in kept.calls)
    assert seen == b"".join(parts)[: b"".join(parts).rfind(b"\n") + 1]
    lines.take(b"")
    assert b"".join(text for _, _, text in kept.calls) == b"".join(parts)
    assert {call[:2] for call in kept.calls} <= {(3, "err")}


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    kept = Kept()
    lines = Lines(0, "out", (kept,))
    for _ in range(3):
        lines.take(b"x" * 40_000)
    assert [len(text) for _, _, text in kept.calls] == [80_000]


def test_lines_show_their_host_and_stream(capsys: pytest.CaptureFixture[str]) -> None:
    show(0, "out", b"one\n\ntwo\n")
    show(12, "err", b"three \xff")
    printed = capsys.readouterr()
    assert printed.out == "h0 | one\nh0 | \nh0 | two\n"
    assert printed.err == "h12 | three \\xff\n"


def test_a_terminal_that_knows_less_letters_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", plain)
    show(0, "out", "µs\n".encode())
    assert plain.buffer.getvalue() == b"h0 | \\xb5s\n"


def test_logs_are_what_the_hosts_wrote(tmp_path: Path) -> None:
    with closing(Logs(tmp_path / "new" / "runs", 2)) as logs:
        logs(1, "out", b"a\n")
        logs(1, "err", b"b \xff")
        logs(1, "out", b"c")
    read = {path.name: path.read_bytes() for path in (tmp_path / "new" / "runs").iterdir()}
    assert read == {"h0.out": b"", "h0.err": b"", "h1.out": b"a\nc", "h1.err": b"b \xff"}


def test_logs_say_where_they_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.TestbedError, match=r"file cannot be written: .*; pass another folder"):
        Logs(tmp_path / "file", 1)
    (tmp_path / "h0.err").mkdir()
    with pytest.raises(errors.TestbedError, match="cannot be written: Is a directory"):
        Logs(tmp_path, 1)


def test_every_sink_has_everything() -> None:
    one, other = Kept(), Kept()
    sinks: Any = (one, other)
    Lines(0, "out", sinks).take(b"line\n")
    assert one.calls == other.calls == [(0, "out", b"line\n")]
