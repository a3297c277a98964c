from __future__ import annotations

import tomllib
from importlib.metadata import version as version_of

import pytest

from gradwire.version import how_to_install, installed, version
from support.project import ROOT


def test_the_version_is_that_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version() == project["version"]


def test_packages_are_looked_up_by_name() -> None:
    assert installed("torch") == version_of("torch")
    assert installed("no-such-package-anywhere") is None


@pytest.mark.parametrize("extra", ["train", "mpi", "lightning", "huggingface"])
def test_an_extra_that_is_named_exists(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra in project["optional-dependencies"]
    assert f"'.[{extra}]'" in how_to_install(extra)
