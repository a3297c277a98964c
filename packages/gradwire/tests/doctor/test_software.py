from __future__ import annotations

import re

import pytest

from gradwire.doctor.software import LEAST_PYTHON, LEAST_TORCH, check_package, check_python, check_torch
from support.project import ROOT, read_toml

PROJECT = read_toml(ROOT / "packages/gradwire/pyproject.toml")["project"]


def test_the_least_versions_are_those_of_the_package() -> None:
    (torch,) = (line for line in PROJECT["dependencies"] if line.startswith("torch"))
    for text, least in ((torch, LEAST_TORCH), (PROJECT["requires-python"], LEAST_PYTHON)):
        (number,) = re.findall(r">=([\d.]+)", text)
        assert tuple(map(int, number.split("."))) == least


@pytest.mark.parametrize(
    ("version", "result"),
    [
        ("2.6.0", "ok"),
        ("2.13.0+cpu", "ok"),
        ("3.0", "ok"),
        ("2.5.9", "FAIL"),
        ("1.13.1", "FAIL"),
        ("git", "warn"),
    ],
)
def test_torch_is_judged_by_numbers_not_by_letters(version: str, result: str) -> None:
    finding = check_torch(version)
    assert (finding.result, version in finding.detail) == (result, True)


def test_an_old_python_is_told_what_to_do() -> None:
    assert check_python("3.10.0").result == "ok"
    old = check_python("3.9.20")
    assert old.result == "FAIL"
    assert "at least 3.10, got 3.9.20; run gradwire with a newer Python" in old.detail


def test_a_package_that_cannot_be_imported_fails_and_says_what_to_install() -> None:
    found = check_package("torch", "ImportError: libtorch.so")
    assert (found.check, found.result) == ("torch", "FAIL")
    assert found.detail == "cannot be imported (ImportError: libtorch.so); run pip install torch"
