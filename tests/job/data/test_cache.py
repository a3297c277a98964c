from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import DataError
from gradwire.job.data.cache import cache_folder, md5_of


def test_the_cache_is_where_the_desktop_s_rules_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert cache_folder() == Path("/some/cache/gradwire")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "gradwire"


def test_a_file_has_the_published_checksum(tmp_path: Path) -> None:
    """RFC 1321, A.5."""
    file = tmp_path / "abc"
    file.write_bytes(b"abc")
    assert md5_of(file) == "900150983cd24fb0d6963f7d28e17f72"


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^cannot read .*gone: No such file or directory$"):
        md5_of(tmp_path / "gone")
