"""Progress as lines: what is done, what it was, and how long the rest takes at the pace so far."""

from __future__ import annotations

import itertools

import pytest

from gradwire.line_rate.display import progress


@pytest.mark.parametrize(
    ("per_figure_s", "done", "told"),
    [(10.0, 0, "about 30 s left"), (10.0, 1, "about 20 s left"), (60.0, 0, "about 3 min left")],
)
def test_a_line_says_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    per_figure_s: float,
    done: int,
    told: str,
) -> None:
    clock = itertools.count(100.0, per_figure_s)
    monkeypatch.setattr("gradwire.line_rate.display.time.monotonic", lambda: next(clock))
    with progress(4, quiet=False, done=done) as advance:
        for number in range(done + 1, 5):
            advance(number, f"figure {number}")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{done + 1}/4 figure {done + 1}, {told}"
    assert lines[-1] == "4/4 figure 4"
    assert len(lines) == 4 - done


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(2, quiet=True) as advance:
        advance(1, "figure")
    assert capsys.readouterr() == ("", "")
