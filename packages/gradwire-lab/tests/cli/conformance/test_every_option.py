"""Every option of every command answers values that nobody expects with one sentence, or accepts them.

``GRADWIRE_HOSTILE_WORDS=all`` tries every value with every option; by default each option gets a part.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.cli.main import main
from support.hostile_words import VALUES, BegunError, make_files, options, stub_work

ALL = os.environ.get("GRADWIRE_HOSTILE_WORDS") == "all"
STRIDE = 1 if ALL else 11
LONGEST_S = 10
"""How long an answer may take; a value that makes a command read or count without end takes longer."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for variable in ("GRADWIRE_DATA", "RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    make_files()

    def late(*_: object) -> None:
        raise AssertionError(f"no answer within {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_what_nobody_expects_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tried, bad, longest_s = 0, list[str](), 0.0
    stub_work(monkeypatch)
    for place, (before, after, action) in enumerate(list(options(monkeypatch))):
        for value in VALUES[place % STRIDE :: STRIDE]:
            word = f"{action.option_strings[-1]}={value}" if action.option_strings else value
            capfd.readouterr()
            signal.alarm(LONGEST_S)
            began = time.monotonic()
            try:
                code = main([*before, word, *after])
            except BegunError:
                code = 0
            signal.alarm(0)
            longest_s = max(longest_s, time.monotonic() - began)
            problem = judged(code, capfd.readouterr().err)
            bad += [f"{' '.join(before)} {word:.60}: {problem}"] if problem else []
            tried += 1
    sys.stdout.write(f"{tried} words, the slowest answer took {longest_s:.1f} s\n")
    assert bad == [], f"{len(bad)} of {tried}: " + "\n".join(map(ascii, bad))
    assert tried > 1000


def judged(code: int, err: str) -> str:
    """Return what is wrong with an answer, "" for one sentence with exit code 2, or none with 0."""
    if "Traceback" in err or "this is a bug" in err:
        return err[-300:]
    if code == 0:
        return err
    if code != 2 or not (err.startswith("gradwire") and err.endswith("\n")) or err.count("\n") != 1:
        return f"exit code {code}: {err[:300]}"
    return "" if err[:-1].isprintable() else f"control characters: {err:.200}"
