"""The scaling experiment: its options, what its table says, and a small one on a real testbed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.errors import GradwireError
from gradwire.tables import lines
from gradwire_lab.experiments import scaling
from support.beds import needs_namespaces


def row(hosts: int, algorithm: str, measured_s: float) -> dict[str, object]:
    cell = {"hosts": hosts, "rate": "1gbit", "nbytes": 4_000_000, "algorithm": algorithm}
    line = {"line_latency_s": 1e-4, "line_nbytes_per_s": 1.2e8}
    return {**cell, "measured_s": measured_s, "formula_s": 1.5, "replay_s": 2.2, **line}


def test_its_table_compares_with_the_fewest_hosts_and_with_the_models() -> None:
    rows = [row(4, "star", 6.0), row(2, "star", 2.0), row(4, "ring", 2.0)]
    printed = lines(*scaling.table(rows))
    assert printed[0].startswith("exchange of 4MB, uncompressed")
    assert [line.split() for line in printed[-3:]] == [
        ["ring", "4", "2", "1.00x", "1.5", "-25.0", "2.2", "+10.0", "960"],
        ["star", "2", "2", "1.00x", "1.5", "-25.0", "2.2", "+10.0", "960"],
        ["star", "4", "6", "3.00x", "1.5", "-75.0", "2.2", "-63.3", "960"],
    ]
    assert max(map(len, printed)) <= 80


def test_its_picture_is_a_png() -> None:
    pytest.importorskip("matplotlib")
    rows = [row(hosts, algorithm, hosts) for hosts in (2, 4) for algorithm in ("ring", "star")]
    assert scaling.plot(rows).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"hosts": "2,two"}, "for --hosts, got"),
        ({"hosts": "1"}, "at least 2 hosts, got 1"),
        ({"hosts": "65"}, "64"),
        ({"hosts": "2,2"}, "for --hosts, got 2 twice"),
        ({"rate": "fast"}, "expected a rate such as"),
        ({"rate": "1kbit"}, "expected testbed rates from"),
        ({"nbytes": "0"}, "of at least 1 byte"),
        ({"nbytes": "many"}, "expected a size such as"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, str], reason: str) -> None:
    words = argparse.Namespace(**{"hosts": "2", "rate": "1gbit", "nbytes": "1MB", **given})
    with pytest.raises(GradwireError) as caught:
        scaling.EXPERIMENT.read(words)
    assert reason in str(caught.value)


@pytest.mark.processes
@needs_namespaces
def test_ranks_on_a_testbed_answer_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = ["experiment", "scaling", "--hosts", "2", "--rate", "1gbit", "--nbytes", "64KiB"]
    assert main([*said, "--out", str(tmp_path)]) == 0
    printed = capfd.readouterr()
    assert printed.out.startswith("1/2 algorithm ring  measured_s ")
    assert printed.out.endswith(f"the record is in {tmp_path}\nthe page is {tmp_path / 'report.html'}\n")
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["schema"], record["finished"]) == ("gradwire.experiment-scaling/1", True)
    assert [row["algorithm"] for row in record["rows"]] == ["ring", "star"]
    for each in record["rows"]:
        assert 0 < each["measured_s"] < 10
        assert 0 < each["line_nbytes_per_s"] < 1.25e8 * 1.5
        assert each["formula_s"] > 65536 / each["line_nbytes_per_s"] / 2
