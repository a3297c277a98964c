"""The notebook of examples/ runs as Jupyter runs it, and shows what its text says."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from nbclient import NotebookClient

from support.project import ROOT

nbformat: Any = import_module("nbformat")  # its functions have no types
NOTEBOOK = ROOT / "examples" / "what_compression_does.ipynb"


@cache
def executed() -> str:
    """Run all cells, and return what they print."""
    notebook = nbformat.reads(NOTEBOOK.read_text(encoding="utf-8"), as_version=4)
    NotebookClient(notebook, timeout=200, startup_timeout=200, kernel_name="python3").execute()
    return printed(notebook)


def printed(notebook: Any) -> str:
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", [])]
    assert {each["output_type"] for each in outputs} <= {"stream"}, outputs
    return "".join(each["text"] for each in outputs)


def codecs(told: str) -> dict[str, tuple[float, float, float]]:
    """Return the bits per value, the relative error, and the share of zeros by codec."""
    rows = re.findall(r"^(\S+) +([\d.]+) +([\d.]+)% +([\d.]+)%$", told, re.MULTILINE)
    return {spec: (float(bits), float(error) / 100, float(zeros) / 100) for spec, bits, error, zeros in rows}


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_it_runs_and_shows_what_it_says() -> None:
    check(executed())


def test_the_stored_output_shows_it_too() -> None:
    notebook = nbformat.reads(NOTEBOOK.read_text(encoding="utf-8"), as_version=4)
    nbformat.validate(notebook)
    check(printed(notebook))


def check(told: str) -> None:
    table = codecs(told)
    assert table["identity"][:2] == (32.0, 0.0)
    assert table["bf16"][0] == 16.0
    assert 7.9 < table["fp8"][0] < 8.5
    assert table["fp8"][1] < 0.1
    assert table["quantize:8"][1] < table["quantize:4"][1]
    best = min(table, key=lambda each: table[each][0])
    assert best == "errbound:2^-6", "it has the best ratio"
    assert table[best][1] == max(each[1] for each in table.values()), "and the largest error"
    assert table[best][2] > 0.5, "because it rounds to 0"
    assert "bit-identical replicas: True" in told
    (accuracy,) = re.findall(r"held-out digits: ([\d.]+)%", told)
    assert float(accuracy) > 75
    first, last = map(float, re.findall(r"^loss (\S+) -> (\S+)$", told, re.MULTILINE)[0])
    assert last < 0.5 * first
    (ratio,) = re.findall(r"; ([\d.]+) times fewer bytes on the wire", told)
    assert float(ratio) > 2
    chosen = re.findall(r"^(\w+): (\S+), ([\d.]+) s a step; uncompressed ([\d.]+) s$", told, re.MULTILINE)
    (slow, codec, plan_s, plain_s), (fast, *_) = chosen
    assert (slow, fast) == ("100mbit", "100gbit")
    assert codec != "identity", "however busy the machine is"
    assert float(plan_s) < float(plain_s)
