from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import DataError
from gradwire_lab.job.data import md5_of


def test_a_file_has_the_published_checksum(tmp_path: Path) -> None:
    """RFC 1321, A.5."""
    file = tmp_path / "abc"
    file.write_bytes(b"abc")
    assert md5_of(file) == "900150983cd24fb0d6963f7d28e17f72"


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"^cannot read .*gone: No such file or directory; put a readable file there$",
    ):
        md5_of(tmp_path / "gone")
