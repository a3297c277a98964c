from __future__ import annotations

import pytest

from gradwire.errors import JobError
from gradwire_lab.experiments.papers.exhibit import OriginKind, by_name, calibrated, chosen, paper


def test_an_origin_reads_as_text() -> None:
    assert str(paper("table II")) == "published, table II"
    assert str(calibrated("figure 4")) == "calibrated on figure 4"
    assert str(chosen("for run time")) == "chosen for run time"
    assert [each("x").source for each in (paper, calibrated, chosen)] == [*OriginKind]


def test_names_share_an_origin_and_origins_are_read_only() -> None:
    named = by_name({"WITHIN ROUNDED": chosen("two digits"), "PLACES": paper("table I")})
    assert [*named] == ["WITHIN", "ROUNDED", "PLACES"]
    assert named["WITHIN"].where == named["ROUNDED"].where == "two digits"
    with pytest.raises(TypeError):
        named["WITHIN"] = paper("table I")  # type: ignore[index]


def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(
        JobError, match="one origin of WITHIN, got published, table I and chosen for run time"
    ):
        by_name({"WITHIN ROUNDED": paper("table I"), "WITHIN": chosen("for run time")})
