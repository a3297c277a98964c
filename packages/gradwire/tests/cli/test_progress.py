from __future__ import annotations

import io
import sys

import pytest

from gradwire.cli.progress import measuring


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, quiet: bool) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "60")
    with measuring(quiet) as show:
        show(1, 4, "fp8" * 40)
    return stream.getvalue()


def test_a_bar_is_drawn_on_a_terminal_within_its_width_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, Terminal(), quiet=False)
    line = text.split("\x1b[K")[1].rstrip("\r")
    assert line.startswith("measuring codecs [######                  ] 1/4 fp8fp8")
    assert len(line) == 59
    assert text.endswith("\r\x1b[K")


def test_nothing_is_drawn_when_quiet_or_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, Terminal(), quiet=True) == drawn(monkeypatch, io.StringIO(), quiet=False) == ""
