"""Every kind of file of the version before the split is read as that version read it.

Commit 5d7ef2d3 wrote the folders below ``files``, one for each kind, and ``files.json``, what it read there.
"""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch

from support import golden
from support.saved_files import KINDS

READ = golden.load("files")


@pytest.mark.parametrize("kind", READ)
def test_a_file_is_read_as_before(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved = golden.FOLDER / "files" / re.sub(", | |'", lambda it: {", ": "+", " ": "_"}.get(it[0], ""), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = KINDS[kind](tmp_path)  # writes today's files, and knows how they are read
        shutil.rmtree(tmp_path)
        shutil.copytree(saved, tmp_path)
        found = golden.plain(read())
    assert golden.difference(READ[kind], found) is None
