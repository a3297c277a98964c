"""The program of one host: it calls the module that it is given, and says an error in one sentence."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gradwire.errors import LinkError
from gradwire_lab.experiments.hosts import rank, ranks


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def met() -> Iterator[str]:
        yield "ranks"

    monkeypatch.setattr(ranks, "met_ranks", met)


@pytest.mark.usefixtures("alone")
def test_the_module_measures_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    module = types.ModuleType("measured")
    module.measure = lambda ranks, cells, target: called.append((ranks, cells, target))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "measured", module)
    assert rank.main("measured", json.dumps({"cells": [{"hosts": 2}], "target": 0.5})) == 0
    assert called == [("ranks", [{"hosts": 2}], 0.5)]


@pytest.mark.usefixtures("alone")
def test_an_error_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object, **__: object) -> None:
        raise LinkError("rank 1 is gone")

    module = types.ModuleType("measured")
    module.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "measured", module)
    assert rank.main("measured", '{"cells": []}') == 2
    assert capsys.readouterr().err == "gradwire: rank 1 is gone\n"


def test_outside_of_a_testbed_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert rank.main("gradwire_lab.experiments.scaling", '{"cells": []}') == 2
    assert "RANK: expected a whole number" in capsys.readouterr().err
