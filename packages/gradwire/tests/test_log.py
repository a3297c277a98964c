"""Lines reach standard error once, or the application's handlers once, at the levels that users chose."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradwire import log
from gradwire.errors import SpecError

LINES = """
import logging
from gradwire.log import LOG, open_log
{before}
open_log()
open_log()
LOG.debug("measured")
LOG.info("attached")
LOG.warning("ignored")
logging.getLogger("gradwire.lossy").warning("a Python warning, too")
{after}
LOG.info("decided")
"""
CONFIGURED = 'logging.basicConfig(format="app: %(message)s", level=logging.{level})'
HEARD = """
class Heard(logging.Handler):
    def emit(self, record):
        print("own:", record.getMessage())
logging.getLogger("gradwire").addHandler(Heard())
"""


def lines(monkeypatch: pytest.MonkeyPatch, setting: str = "", before: str = "", after: str = "") -> list[str]:
    """Return all lines that a program prints."""
    monkeypatch.setenv("GRADWIRE_LOG", setting)
    program = LINES.format(before=before, after=after)
    run = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("", ["attached", "ignored", "decided"]),
        ("info", ["attached", "ignored", "decided"]),
        ("quiet", ["ignored"]),
        ("debug", ["measured", "attached", "ignored", "decided"]),
    ],
)
def test_without_configured_logging_lines_are_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, setting: str, shown: list[str]
) -> None:
    assert lines(monkeypatch, setting) == [f"gradwire: {each}" for each in shown]


def test_an_application_that_configures_logging_has_each_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ["attached", "ignored", "a Python warning, too", "decided"]
    found = lines(monkeypatch, before=CONFIGURED.format(level="INFO"))
    assert found == [f"app: {each}" for each in shown]


def test_an_application_that_configures_logging_later_has_each_line_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = lines(monkeypatch, after=CONFIGURED.format(level="INFO"))
    assert found == ["gradwire: attached", "gradwire: ignored", "app: decided"]


def test_the_applications_level_holds_unless_the_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = CONFIGURED.format(level="WARNING")
    assert lines(monkeypatch, before=warnings) == ["app: ignored", "app: a Python warning, too"]
    assert lines(monkeypatch, before=CONFIGURED.format(level="ERROR")) == []
    assert "app: attached" in lines(monkeypatch, "info", before=warnings)
    quiet = 'logging.getLogger("gradwire").setLevel(logging.WARNING)'
    assert lines(monkeypatch, before=quiet) == ["gradwire: ignored"]


def test_a_handler_of_the_logger_gradwire_counts_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    level = 'logging.getLogger("gradwire").setLevel(logging.INFO)'
    found = lines(monkeypatch, before=HEARD + level)
    assert found == ["own: attached", "own: ignored", "own: a Python warning, too", "own: decided"]


def test_another_level_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_LOG", "loud")
    with pytest.raises(SpecError, match="expected one of quiet, info, debug for GRADWIRE_LOG, got 'loud'"):
        log.level()
