from __future__ import annotations

import sys

import pytest

from gradwire.codecs import TABLE, parse
from gradwire.errors import MissingPackageError
from gradwire.gpu.table import PLACES, Format, format_of
from support.project import DOCS

HOST = {"ecsq", "lossless"}


@pytest.mark.parametrize("name", PLACES)
def test_each_place_has_kernels(name: str) -> None:
    assert isinstance(format_of(name), Format)


def test_all_other_codecs_stay_on_the_host_and_the_page_says_so() -> None:
    codecs = [parse(row.codec.EXAMPLES[0]) for row in TABLE]
    without = {each.name for each in codecs if getattr(each, "compiled", ("",))[0] not in PLACES}
    assert without == HOST
    page = (DOCS / "gpu.md").read_text()
    for codec in codecs:
        assert f"| `{codec.name}` | {'host' if codec.name in HOST else 'GPU'} |" in page


def test_without_triton_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradwire.gpu.cast", None)
    format_of.cache_clear()
    with pytest.raises(MissingPackageError, match=r"needs the package triton.*\[gpu\].*encode on the host"):
        format_of("bf16")
