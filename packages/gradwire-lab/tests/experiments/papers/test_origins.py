from __future__ import annotations

import pytest

from gradwire_lab.experiments.papers.exhibit import OriginKind, calibrated, chosen, origins, paper


def test_an_origin_reads_as_text() -> None:
    assert str(paper("table II")) == "published, table II"
    assert str(calibrated("figure 4")) == "calibrated on figure 4"
    assert str(chosen("for run time")) == "chosen for run time"
    assert [each("x").source for each in (paper, calibrated, chosen)] == [*OriginKind]


def test_origins_are_read_only() -> None:
    named = origins(WITHIN=chosen("two digits"))
    assert named["WITHIN"].where == "two digits"
    with pytest.raises(TypeError):
        named["WITHIN"] = paper("table I")  # type: ignore[index]
