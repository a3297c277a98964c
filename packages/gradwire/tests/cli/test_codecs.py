from __future__ import annotations

import pytest

from gradwire.cli import main
from gradwire.cli.codecs import NOTES, table
from gradwire.codecs import TABLE, parse
from gradwire.tables import lines


def test_every_codec_has_a_line_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codecs"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == lines(table())
    assert max(len(line) for line in printed) <= 80
    assert [row.name for row in TABLE] == list(NOTES)
    assert [parse(line.split()[0]).name for line in printed[2:]] == list(NOTES)
