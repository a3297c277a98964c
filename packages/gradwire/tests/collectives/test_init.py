from __future__ import annotations

import pytest

from gradwire import collectives
from gradwire.collectives import NAMES, TABLE, Hierarchical, get
from gradwire.errors import SpecError


def test_every_name_gives_its_algorithm() -> None:
    assert set(NAMES) == {*TABLE, "backend"}
    for name, algorithm in TABLE.items():
        assert get(name) is algorithm
    assert get("backend") is collectives.backend
    assert get("hierarchical:4,ring+star") == Hierarchical.parse("hierarchical:4,ring+star")


@pytest.mark.parametrize("spec", ["", "Ring", "ring ", "hierarchical-4", None, 3, ["ring"]])
def test_another_name_is_refused_with_the_known_ones(spec: object) -> None:
    with pytest.raises(SpecError, match=r"^unknown algorithm .*; choose one of backend, butterfly, "):
        get(spec)  # type: ignore[arg-type]
